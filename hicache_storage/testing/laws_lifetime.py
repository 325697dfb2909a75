"""Laws of instances and processes: closing, reopening, two clients, killed writers, a full store."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from hicache_storage.errors import StoreError, StoreFull, StoreUnavailable
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of
from hicache_storage.testing.hooks import SMALL_STORE_NBYTES, StoreHooks, assert_lists, at_once, fetched
from hicache_storage.types import ObjectWrite, Outcome, RangeRead, Status, WriteResult

_KILLED_NBYTES = 4 << 20
_KILLS = 5
_MAX_WRITERS = 20
_DEADLINE_S = 60

# Writes one object and says how long it took; with a delay, it is killed that long after the write began.
_WRITER = """
import os, signal, sys, threading, time
from hicache_storage.testing.bodies import body_of

def die(delay_s):
    time.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)

key, nbytes, delay_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
body = body_of(key, nbytes)
sys.setswitchinterval(1e-5)
killer = threading.Thread(target=die, args=(delay_s,), daemon=True)
began_s = time.monotonic()
if delay_s:
    killer.start()
store.write(key, [body])
print(time.monotonic() - began_s, flush=True)
if delay_s:
    killer.join()
"""

_CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "write": lambda store: store.write("a", [b"x"]),
    "read": lambda store: store.read_into("a", 0, [bytearray(1)]),
    "stat": lambda store: store.stat("a"),
    "delete": lambda store: store.delete("a"),
    "quarantine": lambda store: store.quarantine("a"),
}

_BATCHES: dict[str, Callable[[ObjectStore], list[Outcome]]] = {
    "read_many": lambda store: store.read_many([RangeRead("a", 0, [bytearray(1)])]),
    "write_many": lambda store: store.write_many([ObjectWrite("a", [b"x"])]),
    "exists_many": lambda store: store.exists_many(["a"]),
    "delete_many": lambda store: store.delete_many(["a"]),
    "touch_many": lambda store: store.touch_many(["a"]),
}


class LifetimeLaws(StoreHooks):
    """What is true when instances and processes come and go."""

    def test_close_may_be_called_again(self, store: ObjectStore) -> None:
        store.close()
        store.close()

    def test_leaving_the_context_closes_the_store(self, store: ObjectStore) -> None:
        with store as entered:
            assert entered is store

        with pytest.raises(StoreUnavailable):
            store.stat("a")

    @pytest.mark.parametrize("call", _CALLS)
    def test_a_closed_store_is_unavailable(self, store: ObjectStore, call: str) -> None:
        store.write("a", [b"x"])
        store.close()

        with pytest.raises(StoreUnavailable):
            _CALLS[call](store)

    @pytest.mark.parametrize("call", _BATCHES)
    def test_a_closed_store_fails_every_request(self, store: ObjectStore, call: str) -> None:
        store.write("a", [b"x"])
        store.close()

        [outcome] = _BATCHES[call](store)

        assert isinstance(outcome.error, StoreUnavailable)

    def test_a_closed_store_does_not_list(self, store: ObjectStore) -> None:
        store.close()

        with pytest.raises(StoreError):
            list(store.list_keys())

    def test_objects_of_a_durable_store_survive_reopening(self, store: ObjectStore) -> None:
        bodies = {f"survives-{i}": body_of(str(i), 5000 + i) for i in range(5)}
        for key, body in bodies.items():
            store.write(key, [body])
        store.close()
        if not store.capabilities.durable:
            return  # Nothing is promised, so nothing can be wrong.

        with self.reopen(store) as reopened:
            assert [fetched(reopened, key, 0, len(body)) for key, body in bodies.items()] == list(bodies.values())
            assert_lists(reopened, "", bodies)
            assert reopened.write("survives-0", [bytes(5000)]) is WriteResult.ALREADY_THERE

    def test_two_instances_see_each_other(self, store: ObjectStore) -> None:
        if not self.shared_between_processes:
            return  # The class says so: every instance has objects of its own.

        with self.second(store) as other:
            assert fetched(other, "a", 0, 4) is None
            assert store.write("a", [b"0123"]) is WriteResult.STORED
            assert fetched(other, "a", 0, 4) == b"0123"
            assert other.write("a", [b"abcd"]) is WriteResult.ALREADY_THERE
            assert other.write("b", [b"4567"]) is WriteResult.STORED
            assert_lists(store, "", ["a", "b"])
            assert other.delete("a")
            assert store.stat("a") is None
            assert store.exists_many(["a", "b"]) == other.exists_many(["a", "b"])

    def test_closing_one_instance_leaves_the_other_open(self, store: ObjectStore) -> None:
        if not self.shared_between_processes:
            return  # The class says so: every instance has objects of its own.

        with self.second(store) as other:
            store.write("a", [b"0123"])
            store.close()

            assert fetched(other, "a", 0, 4) == b"0123"

    def test_writers_of_two_instances_leave_one_whole_object(self, store: ObjectStore) -> None:
        if not self.shared_between_processes:
            return  # The class says so: every instance has objects of its own.

        with self.second(store) as other:
            for i in range(10):
                body = body_of(f"both-{i}", 300_001)

                results = at_once(*[partial(writer.write, f"both-{i}", [body]) for writer in (store, other) * 2])

                assert WriteResult.STORED in results
                assert self.observe(store, f"both-{i}") == body

    def test_a_killed_writer_leaves_a_whole_object_or_none(self, store: ObjectStore) -> None:
        if not self.shared_between_processes:
            return  # The class says so: the objects end with their only process.
        nbytes = min(_KILLED_NBYTES, store.capabilities.max_object_nbytes or _KILLED_NBYTES)
        code = self.opening_code(store) + _WRITER
        keys = ["killed-0"]
        whole = ["killed-0"]
        write_s = float(_run_writer(code, "killed-0", nbytes, 0).stdout)

        hits = 0
        while hits < _KILLS and len(keys) <= _MAX_WRITERS:
            keys.append(f"killed-{len(keys)}")
            # Any moment is a fair one to be killed; these are spread over the write.
            writer = _run_writer(code, keys[-1], nbytes, write_s * (hits + 0.5) / _KILLS)
            assert writer.returncode == -signal.SIGKILL
            hits += not writer.stdout
            write_s = min(write_s, float(writer.stdout or write_s))
            # A server may still be storing what a killed client had sent; it does so whole or not at all.
            seen = self.observe(store, keys[-1])
            assert seen in {None, body_of(keys[-1], nbytes)}
            assert fetched(store, keys[-1], 0, nbytes) in {seen, body_of(keys[-1], nbytes)}
            whole += [keys[-1]] if seen else []
            if store.capabilities.listing:
                assert {*whole} <= {info.key for info in store.list_keys()} <= {*keys}

        for key in keys:
            assert store.write(key, [body_of(key, nbytes)])
            assert self.observe(store, key) == body_of(key, nbytes)

    def test_a_full_store_refuses_or_evicts_and_damages_nothing(self, request: pytest.FixtureRequest) -> None:
        if not self.bounded:
            return  # The class says so: there is no capacity to reach.
        store: ObjectStore = request.getfixturevalue("small_store")
        nbytes = SMALL_STORE_NBYTES // 10
        keys = [f"fill-{i}" for i in range(30)]

        for key in keys:
            try:
                assert store.write(key, [body_of(key, nbytes)]) is WriteResult.STORED
            except StoreFull:
                assert self.observe(store, key) is None

        kept = {key: body for key in keys if (body := self.observe(store, key)) is not None}
        assert 1 <= len(kept) <= 10
        assert kept == {key: body_of(key, nbytes) for key in kept}
        assert {key: fetched(store, key, 0, nbytes) for key in kept} == kept

    def test_a_full_store_takes_an_object_once_there_is_room(self, request: pytest.FixtureRequest) -> None:
        if not self.bounded:
            return  # The class says so: there is no capacity to reach.
        store: ObjectStore = request.getfixturevalue("small_store")
        nbytes = SMALL_STORE_NBYTES // 10
        keys = [f"fill-{i}" for i in range(30)]
        store.write_many([ObjectWrite(key, [body_of(key, nbytes)]) for key in keys])

        store.delete_many(keys)

        assert store.write("small", [b"0123"]) is WriteResult.STORED
        assert self.observe(store, "small") == b"0123"

    def test_an_object_larger_than_the_store_is_refused(self, request: pytest.FixtureRequest) -> None:
        if not self.bounded:
            return  # The class says so: there is no capacity to reach.
        store: ObjectStore = request.getfixturevalue("small_store")
        store.write("small", [b"0123"])

        with pytest.raises(StoreFull):
            store.write("large", [bytes(SMALL_STORE_NBYTES + 1)])
        [outcome] = store.write_many([ObjectWrite("large", [bytes(SMALL_STORE_NBYTES + 1)])])

        assert isinstance(outcome.error, StoreFull)
        assert self.observe(store, "large") is None
        assert store.write("after", [b"4567"]) is WriteResult.STORED

    def test_a_full_store_fails_only_the_requests_it_cannot_take(self, request: pytest.FixtureRequest) -> None:
        if not self.bounded:
            return  # The class says so: there is no capacity to reach.
        store: ObjectStore = request.getfixturevalue("small_store")

        outcomes = store.write_many([
            ObjectWrite("a", [b"0123"]),
            ObjectWrite("large", [bytes(SMALL_STORE_NBYTES + 1)]),
            ObjectWrite("b", [b"4567"]),
        ])  # fmt: skip

        assert [outcome.status for outcome in outcomes] == [Status.STORED, Status.FAILED, Status.STORED]


def _run_writer(code: str, key: str, nbytes: int, delay_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, key, str(nbytes), str(delay_s)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_DEADLINE_S, check=False)  # noqa: S603 - our own code
