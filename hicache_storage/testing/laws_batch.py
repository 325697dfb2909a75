"""Laws of batches: one outcome per request, in request order, whatever happens to its neighbours."""

from __future__ import annotations

import gc
import hashlib

from hicache_storage.errors import CorruptObject, RangeError, Unsupported
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.hooks import StoreHooks, assert_released
from hicache_storage.types import ObjectWrite, Outcome, RangeRead, Status, WritableBuffer


class DigestTail:
    """A tail that proves its payload, and notes what it is told."""

    nbytes = 32

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.told: list[int] = []

    def advance(self, nbytes: int) -> None:
        self.told.append(nbytes)

    def finish(self) -> bytes:
        return hashlib.sha256(self._payload).digest()


class BatchLaws(StoreHooks):
    """A batch is a list of single requests that may be answered faster, and nothing else."""

    def test_an_empty_batch_has_no_outcomes(self, store: ObjectStore) -> None:
        assert store.read_many([]) == []
        assert store.write_many([]) == []
        assert store.exists_many([]) == []
        assert store.delete_many([]) == []
        assert store.touch_many([]) == []

    def test_a_batch_may_be_any_sequence(self, store: ObjectStore) -> None:
        target = poisoned(1)

        assert _said(store.write_many((ObjectWrite("a", (b"x",)),))) == [Status.STORED]
        assert _said(store.read_many((RangeRead("a", 0, (target,)),))) == [Status.HIT]
        assert _said(store.exists_many(("a",))) == [Status.HIT]
        assert _said(store.touch_many(("a",))) == [Status.HIT]
        assert _said(store.delete_many(("a",))) == [Status.HIT]

    def test_reads_are_answered_in_request_order(self, store: ObjectStore) -> None:
        bodies = {f"k{i}": body_of(f"k{i}", 100 + i) for i in range(24)}
        for key in list(bodies)[::2]:
            self.plant(store, key, bodies[key])
        targets = {key: poisoned(50) for key in bodies}

        outcomes = store.read_many([RangeRead(key, i, [targets[key]]) for i, key in enumerate(bodies)])

        assert _said(outcomes) == [Status.HIT, Status.MISS] * 12
        for i, key in list(enumerate(bodies))[::2]:
            assert targets[key] == bodies[key][i : i + 50]

    def test_a_failed_read_does_not_fail_its_neighbours(self, store: ObjectStore) -> None:
        for key in ("a", "b", "c"):
            self.plant(store, key, b"0123")
        targets = [poisoned(4) for _ in range(3)]

        outcomes = store.read_many([
            RangeRead("a", 0, [targets[0]]),
            RangeRead("a", 1, [bytearray(4)]),
            RangeRead("missing", 0, [bytearray(4)]),
            RangeRead("b", 0, [targets[1]]),
            RangeRead("", 0, [bytearray(4)]),
            RangeRead("b", 0, [bytearray(4)], object_nbytes=5),
            RangeRead("b", -1, [bytearray(1)]),
            RangeRead("c", 0, [targets[2]]),
        ])  # fmt: skip

        assert [type(outcome.error) for outcome in outcomes] == [
            type(None), RangeError, type(None), type(None), Unsupported, CorruptObject, RangeError, type(None)
        ]  # fmt: skip
        assert [bool(outcome) for outcome in outcomes] == [True, False, False, True, False, False, False, True]
        assert targets == [b"0123"] * 3

    def test_an_error_is_there_exactly_when_a_request_failed(self, store: ObjectStore) -> None:
        self.plant(store, "a", b"0123")
        reads = [RangeRead(key, 0, [bytearray(length)]) for key in ("a", "missing", "") for length in (4, 5)]

        outcomes = store.read_many(reads) + store.exists_many(["a", "missing", ""])

        assert [outcome.error is not None for outcome in outcomes] == [
            outcome.status is Status.FAILED for outcome in outcomes
        ]

    def test_one_object_may_be_read_many_times_in_a_batch(self, store: ObjectStore) -> None:
        body = body_of("same", 300)
        self.plant(store, "same", body)
        targets = [poisoned(100) for _ in range(6)]

        outcomes = store.read_many([RangeRead("same", 40 * i, [target]) for i, target in enumerate(targets)])

        assert _said(outcomes) == [Status.HIT] * 6
        assert targets == [body[40 * i : 40 * i + 100] for i in range(6)]

    def test_a_batched_read_scatters(self, store: ObjectStore) -> None:
        body = body_of("scatter", 64)
        self.plant(store, "scatter", body)
        arena = poisoned(40)
        targets: list[WritableBuffer] = [bytearray(3), memoryview(arena)[30:35], bytearray(), memoryview(arena)[:7]]

        assert _said(store.read_many([RangeRead("scatter", 9, targets)])) == [Status.HIT]

        assert b"".join(targets) == body[9:24]
        assert arena[7:30] == poisoned(23)

    def test_a_batch_checks_declared_sizes(self, store: ObjectStore) -> None:
        sizes = {"short": 3, "right": 4, "long": 5, "empty": 0}
        for key, nbytes in sizes.items():
            self.plant(store, key, b"01234"[:nbytes])

        outcomes = store.read_many([RangeRead(key, 0, [bytearray(4)], object_nbytes=4) for key in sizes])

        assert [type(outcome.error) for outcome in outcomes] == [
            CorruptObject, type(None), CorruptObject, CorruptObject
        ]  # fmt: skip

    def test_reported_progress_is_true(self, store: ObjectStore) -> None:
        body = body_of("progress", (1 << 20) + 3)
        self.plant(store, "progress", body)
        target = poisoned(len(body))
        promised: list[int] = []
        wrong: list[int] = []

        def on_filled(nbytes: int) -> None:
            promised.append(nbytes)
            if not 0 <= nbytes <= len(body) or target[:nbytes] != body[:nbytes]:
                wrong.append(nbytes)

        assert _said(store.read_many([RangeRead("progress", 0, [target], on_filled=on_filled)])) == [Status.HIT]

        assert wrong == []
        assert promised == sorted(promised)
        assert target == body

    def test_progress_is_counted_from_the_start_of_the_range(self, store: ObjectStore) -> None:
        body = body_of("progress", 4099)
        self.plant(store, "progress", body)
        promised: list[int] = []
        targets = [poisoned(10), poisoned(20)]

        store.read_many([RangeRead("progress", 4000, targets, on_filled=promised.append)])

        assert all(0 <= nbytes <= 30 for nbytes in promised)
        assert b"".join(targets) == body[4000:4030]

    def test_writes_are_answered_in_request_order(self, store: ObjectStore) -> None:
        self.plant(store, "there", b"0123")
        self.plant(store, "damaged", b"012")

        outcomes = store.write_many([
            ObjectWrite("new", [b"ab", b"cd"]),
            ObjectWrite("there", [b"abcd"]),
            ObjectWrite("", [b"abcd"]),
            ObjectWrite("damaged", [b"abcd"]),
            ObjectWrite("empty", []),
        ])  # fmt: skip

        assert _said(outcomes) == [
            Status.STORED, Status.ALREADY_THERE, Status.FAILED, Status.STORED, Status.STORED
        ]  # fmt: skip
        keys = ("new", "there", "damaged", "empty")
        assert [self.observe(store, key) for key in keys] == [b"abcd", b"0123", b"abcd", b""]

    def test_a_tail_is_stored_behind_its_payload(self, store: ObjectStore) -> None:
        bodies = {
            name: body_of(name, nbytes) for name, nbytes in (("small", 100), ("large", (2 << 20) + 5), ("none", 0))
        }
        tails = {name: DigestTail(body) for name, body in bodies.items()}

        outcomes = store.write_many([
            ObjectWrite(name, [body[:40], body[40:]], tails[name]) for name, body in bodies.items()
        ])  # fmt: skip

        assert _said(outcomes) == [Status.STORED] * 3
        for name, body in bodies.items():
            assert self.observe(store, name) == body + hashlib.sha256(body).digest()
            assert tails[name].told == sorted(tails[name].told)
            assert all(0 <= nbytes <= len(body) for nbytes in tails[name].told)

    def test_a_key_may_be_written_twice_in_a_batch(self, store: ObjectStore) -> None:
        body = body_of("twice", 5000)

        outcomes = store.write_many([ObjectWrite(key, [body]) for key in ("twice", "other", "twice")])

        assert all(outcomes)
        assert Status.STORED in {outcomes[0].status, outcomes[2].status}
        assert outcomes[1].status is Status.STORED
        assert self.observe(store, "twice") == body

    def test_a_large_batch_is_answered_completely(self, store: ObjectStore) -> None:
        bodies = {f"k{i}": body_of(f"k{i}", 1000 + i) for i in range(300)}
        targets = {key: poisoned(len(body)) for key, body in bodies.items()}

        stored = store.write_many([ObjectWrite(key, [body]) for key, body in bodies.items()])
        read = store.read_many([RangeRead(key, 0, [target]) for key, target in targets.items()])

        assert _said(stored) == [Status.STORED] * 300
        assert _said(read) == [Status.HIT] * 300
        assert targets == bodies
        assert [self.observe(store, key) for key in bodies] == list(bodies.values())
        assert _said(store.exists_many([*bodies, "missing"])) == [Status.HIT] * 300 + [Status.MISS]
        assert _said(store.delete_many(["missing", *bodies])) == [Status.MISS] + [Status.HIT] * 300
        assert not any(store.exists_many(list(bodies)))

    def test_existence_is_answered_in_request_order(self, store: ObjectStore) -> None:
        self.plant(store, "a", b"")
        self.plant(store, "b", b"x")

        outcomes = store.exists_many(["missing", "a", "", "b", "a", "missing"])

        assert _said(outcomes) == [
            Status.MISS, Status.HIT, Status.FAILED, Status.HIT, Status.HIT, Status.MISS
        ]  # fmt: skip

    def test_a_touch_says_whether_the_object_is_there_and_changes_nothing(self, store: ObjectStore) -> None:
        self.plant(store, "a", b"0123")

        outcomes = store.touch_many(["a", "missing", "", "a"])

        assert _said(outcomes) == [Status.HIT, Status.MISS, Status.FAILED, Status.HIT]
        assert self.observe(store, "a") == b"0123"
        assert self.observe(store, "missing") is None

    def test_deletes_are_answered_in_request_order(self, store: ObjectStore) -> None:
        for key in ("a", "b", "stays"):
            self.plant(store, key, b"x")

        outcomes = store.delete_many(["a", "missing", "", "b"])

        assert _said(outcomes) == [Status.HIT, Status.MISS, Status.FAILED, Status.HIT]
        assert [self.observe(store, key) for key in ("a", "b", "stays")] == [None, None, b"x"]

    def test_a_key_may_be_deleted_twice_in_a_batch(self, store: ObjectStore) -> None:
        self.plant(store, "a", b"x")

        outcomes = store.delete_many(["a", "a"])

        # Which of the two met the object is left to the store.
        assert {outcome.status for outcome in outcomes} <= {Status.HIT, Status.MISS}
        assert any(outcomes)
        assert self.observe(store, "a") is None

    def test_buffers_are_free_after_a_batch(self, store: ObjectStore) -> None:
        buffers = [bytearray(4) for _ in range(6)]

        store.write_many(
            [ObjectWrite("a", [buffers[0]]), ObjectWrite("a", [buffers[1]]), ObjectWrite("", [buffers[2]])]
        )
        store.read_many(
            [RangeRead("a", 0, [buffers[3]]), RangeRead("a", 1, [buffers[4]]), RangeRead("b", 0, [buffers[5]])]
        )

        gc.collect()  # A failed outcome's error may hold frames in a cycle; that is not the store's reference.
        assert_released(buffers)


def _said(outcomes: list[Outcome]) -> list[Status]:
    return [outcome.status for outcome in outcomes]
