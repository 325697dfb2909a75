"""Laws of many threads on one store: an object is seen whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from threading import Event

from hicache_storage.errors import CorruptObject, StoreUnavailable
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.hooks import StoreHooks, at_once, fetched
from hicache_storage.types import ObjectWrite, RangeRead, Status, WriteResult

_NBYTES = 200_003
_LARGE_NBYTES = (2 << 20) + 3
_SIZES = 16
"""How many writings of one key follow each other before one has the size of the first: a store may know them by that."""
_ROUNDS = 15
_READS = 60


class ConcurrencyLaws(StoreHooks):
    """Bodies are large enough that a write which is not atomic is caught half done."""

    def test_many_writers_of_one_key_leave_one_whole_object(self, store: ObjectStore) -> None:
        body = body_of("shared", _LARGE_NBYTES)
        for i in range(_ROUNDS):
            results = at_once(*[partial(store.write, f"shared-{i}", [body])] * 8)

            assert WriteResult.STORED in results
            assert self.observe(store, f"shared-{i}") == body

    def test_writers_of_damaged_and_new_keys_agree(self, store: ObjectStore) -> None:
        body = body_of("damaged", _NBYTES)
        self.plant(store, "damaged", body[:1000])

        results = at_once(*[partial(store.write, "damaged", [body])] * 8)

        assert WriteResult.STORED in results
        assert self.observe(store, "damaged") == body

    def test_a_reader_sees_all_of_an_object_or_nothing(self, store: ObjectStore) -> None:
        body = body_of("new", _LARGE_NBYTES)

        seen = _seen_during(
            partial(_come_and_go, store, "new", body),
            partial(fetched, store, "new", 0, _LARGE_NBYTES),
            partial(_fetched_in_a_batch, store, "new", _LARGE_NBYTES),
        )

        assert seen <= {None, body}

    def test_stat_sees_all_of_an_object_or_nothing(self, store: ObjectStore) -> None:
        body = body_of("new", _LARGE_NBYTES)

        seen = _seen_during(partial(_come_and_go, store, "new", body), partial(_stat_nbytes, store, "new"))

        assert seen <= {None, _LARGE_NBYTES}

    def test_a_reader_never_mixes_a_damaged_object_with_its_replacement(self, store: ObjectStore) -> None:
        bodies = _Bodies()

        def replace() -> None:
            store.delete("replaced")
            self.plant(store, "replaced", bytes(1000))
            store.write("replaced", [bodies.turn()])

        seen = _seen_during(replace, lambda: _fetched_or_corrupt(store, "replaced", bodies.nbytes))

        assert seen <= {None, b"corrupt", *bodies.all}

    def test_what_a_reader_was_told_is_there_is_what_it_gets(self, store: ObjectStore) -> None:
        """Who hashes bytes as they come has hashed these: a store that fills a range once more says so, with 0."""
        bodies = _Bodies()

        def read_whole() -> tuple[bytes, bytes] | None:
            nbytes = bodies.nbytes
            return _read_and_mirrored(store, "replaced", nbytes, object_nbytes=nbytes)

        def read_part() -> tuple[bytes, bytes] | None:
            return _read_and_mirrored(store, "replaced", _LARGE_NBYTES, object_nbytes=None)

        seen = _seen_during(lambda: _come_and_go(store, "replaced", bodies.turn()), read_whole, read_part)

        right = {*bodies.all, *(body[:_LARGE_NBYTES] for body in bodies.all)}
        assert seen <= {None, *((body, body) for body in right)}

    def test_a_store_may_be_used_first_by_many_threads(self, store: ObjectStore) -> None:
        def write_and_read(i: int) -> bool:
            body = body_of(f"first-{i}", 5000 + i)
            store.write(f"first-{i}", [body])
            return fetched(store, f"first-{i}", 0, len(body)) == body

        assert at_once(*[partial(write_and_read, i) for i in range(32)]) == [True] * 32

    def test_batches_of_many_threads_do_not_mix(self, store: ObjectStore) -> None:
        def write_and_read(thread: int) -> bool:
            bodies = {f"{thread}-{i}": body_of(f"{thread}-{i}", 3000 + i) for i in range(20)}
            targets = {key: poisoned(len(body)) for key, body in bodies.items()}
            store.write_many([ObjectWrite(key, [body]) for key, body in bodies.items()])
            store.read_many([RangeRead(key, 0, [target]) for key, target in targets.items()])
            return targets == bodies

        assert at_once(*[partial(write_and_read, thread) for thread in range(8)]) == [True] * 8

    def test_deleters_of_one_key_agree_that_it_was_there(self, store: ObjectStore) -> None:
        self.plant(store, "once", b"x")

        results = at_once(*[partial(store.delete, "once")] * 8)

        assert True in results
        assert self.observe(store, "once") is None

    def test_a_store_may_be_closed_while_it_is_used(self, store: ObjectStore) -> None:
        body = body_of("closing", _NBYTES)
        started = Event()

        def use() -> set[str]:
            said: set[str] = set()
            for i in range(200):
                started.set()
                try:
                    store.write(f"closing-{i % 4}", [body])
                    said.add("right" if fetched(store, f"closing-{i % 4}", 0, _NBYTES) in {None, body} else "wrong")
                except StoreUnavailable:
                    said.add("unavailable")
                    break
            return said

        def close() -> set[str]:
            started.wait()
            store.close()
            return set()

        assert set().union(*at_once(use, use, use, close)) <= {"right", "unavailable"}


class _Bodies:
    """What one key holds, one after the other: bodies that differ in every part, and in size.

    Attributes:
        nbytes: of the one whose turn it is.
    """

    def __init__(self) -> None:
        self.all = [body_of(f"replaced-{i}", _LARGE_NBYTES + i) for i in range(_SIZES)]
        self.nbytes = _LARGE_NBYTES
        self._turns = cycle(self.all)

    def turn(self) -> bytes:
        body = next(self._turns)
        self.nbytes = len(body)
        return body


def _seen_during(change: Callable[[], object], *reads: Callable[[], object]) -> set[object]:
    """Repeat *change* while every one of *reads* is repeated on a thread of its own; return all that they said.

    It goes on until every reader has read often enough: a busy machine takes longer and proves as much.
    """
    counts = [0] * len(reads)
    changed = Event()

    def repeat(i: int) -> set[object]:
        seen: set[object] = set()
        try:
            while not changed.is_set():
                seen.add(reads[i]())
                counts[i] += 1
        finally:
            counts[i] = _READS
        return seen

    def keep_changing() -> set[object]:
        rounds = 0
        try:
            while rounds < _ROUNDS or min(counts) < _READS:
                change()
                rounds += 1
        finally:
            changed.set()
        return set()

    return set().union(*at_once(*[partial(repeat, i) for i in range(len(reads))], keep_changing))


def _come_and_go(store: ObjectStore, key: str, body: bytes) -> None:
    store.write(key, [body])
    store.delete(key)


def _fetched_in_a_batch(store: ObjectStore, key: str, nbytes: int) -> bytes | None:
    target = poisoned(nbytes)
    [outcome] = store.read_many([RangeRead(key, 0, [target], object_nbytes=nbytes)])
    if outcome.error is not None:
        raise outcome.error
    return bytes(target) if outcome.status is Status.HIT else None


def _read_and_mirrored(
    store: ObjectStore, key: str, nbytes: int, *, object_nbytes: int | None
) -> tuple[bytes, bytes] | None:
    """Return the first bytes, and what they were by what the store told on the way; None for a miss or another size."""
    target, mirror = poisoned(nbytes), poisoned(nbytes)
    seen_nbytes = 0

    def on_filled(filled_nbytes: int) -> None:
        nonlocal seen_nbytes
        if filled_nbytes > seen_nbytes:
            mirror[seen_nbytes:filled_nbytes] = target[seen_nbytes:filled_nbytes]
        seen_nbytes = max(seen_nbytes, filled_nbytes) if filled_nbytes else 0

    [outcome] = store.read_many([RangeRead(key, 0, [target], object_nbytes, on_filled)])
    if isinstance(outcome.error, CorruptObject):
        return None
    if outcome.error is not None:
        raise outcome.error
    mirror[seen_nbytes:] = target[seen_nbytes:]
    return (bytes(target), bytes(mirror)) if outcome.status is Status.HIT else None


def _fetched_or_corrupt(store: ObjectStore, key: str, nbytes: int) -> bytes | None:
    target = poisoned(nbytes)
    try:
        return bytes(target) if store.read_into(key, 0, [target], object_nbytes=nbytes) else None
    except CorruptObject:
        return b"corrupt"


def _stat_nbytes(store: ObjectStore, key: str) -> int | None:
    info = store.stat(key)
    return None if info is None else info.nbytes
