"""Laws of reading one object: ranges, scatter, misses, wrong sizes."""

from __future__ import annotations

import gc

import pytest

from hicache_storage.errors import CorruptObject, RangeError
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.hooks import StoreHooks, assert_released, fetched
from hicache_storage.types import WritableBuffer

_NBYTES = 4099


class ReadLaws(StoreHooks):
    """Objects are planted, so that a write with the same mistake cannot hide a wrong read."""

    @pytest.mark.parametrize(
        ("offset", "length"),
        [(0, 4099), (0, 1), (1, 2), (4098, 1), (1, 4098), (4095, 2), (4096, 3), (0, 0), (17, 0), (4099, 0)],
    )
    def test_a_range_read_returns_exactly_that_range(self, store: ObjectStore, offset: int, length: int) -> None:
        body = body_of("range", _NBYTES)
        self.plant(store, "range", body)

        assert fetched(store, "range", offset, length) == body[offset : offset + length]

    @pytest.mark.parametrize("nbytes", [0, 1, 511, 65_537, (2 << 20) + 1])
    def test_a_whole_object_is_read_exactly(self, store: ObjectStore, nbytes: int) -> None:
        body = body_of("whole", nbytes)
        self.plant(store, "whole", body)

        assert fetched(store, "whole", 0, nbytes) == body

    def test_targets_are_filled_one_after_the_other(self, store: ObjectStore) -> None:
        body = body_of("scatter", 64)
        self.plant(store, "scatter", body)
        arena = poisoned(40)
        targets: list[WritableBuffer] = [
            bytearray(3), memoryview(arena)[30:35], bytearray(), memoryview(arena)[0:0], memoryview(arena)[:7]
        ]  # fmt: skip

        assert store.read_into("scatter", 9, targets)

        assert b"".join(targets) == body[9 : 9 + 3 + 5 + 7]

    def test_a_read_touches_nothing_outside_its_targets(self, store: ObjectStore) -> None:
        body = body_of("guard", 64)
        self.plant(store, "guard", body)
        arena = poisoned(96)

        assert store.read_into("guard", 8, [memoryview(arena)[16:32], memoryview(arena)[48:80]])

        assert arena == poisoned(16) + body[8:24] + poisoned(16) + body[24:56] + poisoned(16)

    def test_no_targets_are_a_range_of_length_zero(self, store: ObjectStore) -> None:
        self.plant(store, "none", b"0123")

        assert store.read_into("none", 4, [])

    def test_there_may_be_thousands_of_targets(self, store: ObjectStore) -> None:
        # More than the 1,024 buffers that one preadv takes.
        body = body_of("thousands", 3000)
        self.plant(store, "thousands", body)
        arena = poisoned(3000)

        assert store.read_into("thousands", 0, [memoryview(arena)[i : i + 1] for i in range(3000)])

        assert arena == body

    @pytest.mark.parametrize(
        ("offset", "length"), [(5, 0), (5, 1), (4, 1), (0, 5), (3, 2), (1 << 40, 1), (-1, 0), (-1, 1), (-4, 4)]
    )
    def test_a_range_outside_the_object_is_an_error(self, store: ObjectStore, offset: int, length: int) -> None:
        self.plant(store, "outside", b"0123")

        with pytest.raises(RangeError):
            store.read_into("outside", offset, [bytearray(length)])

    @pytest.mark.parametrize("length", [0, 1, 4096])
    def test_a_missing_object_is_an_answer(self, store: ObjectStore, length: int) -> None:
        assert store.read_into("missing", 0, [bytearray(length)]) is False
        assert store.read_into("missing", 0, [bytearray(length)], object_nbytes=length) is False

    def test_a_miss_is_not_remembered(self, store: ObjectStore) -> None:
        assert fetched(store, "late", 0, 4) is None
        assert store.stat("late") is None

        self.plant(store, "late", b"0123")

        assert fetched(store, "late", 0, 4) == b"0123"

    @pytest.mark.parametrize("object_nbytes", [0, 3, 5, 4096])
    def test_an_object_of_another_size_is_corrupt(self, store: ObjectStore, object_nbytes: int) -> None:
        self.plant(store, "size", b"0123")

        with pytest.raises(CorruptObject):
            store.read_into("size", 0, [bytearray(2)], object_nbytes=object_nbytes)

    @pytest.mark.parametrize("there_nbytes", [0, 1, 4095])
    def test_a_truncated_object_is_corrupt_and_not_a_wrong_range(self, store: ObjectStore, there_nbytes: int) -> None:
        # Both descriptions fit. Only "corrupt" tells the caller that the object must go.
        self.plant(store, "short", body_of("short", 4096)[:there_nbytes])

        with pytest.raises(CorruptObject):
            store.read_into("short", 0, [bytearray(4096)], object_nbytes=4096)

    def test_an_object_of_the_declared_size_is_read(self, store: ObjectStore) -> None:
        self.plant(store, "declared", b"0123")
        target = poisoned(2)

        assert store.read_into("declared", 1, [target], object_nbytes=4)

        assert target == b"12"

    def test_errors_say_where_they_come_from(self, store: ObjectStore) -> None:
        self.plant(store, "where", b"0123")

        with pytest.raises(RangeError) as caught:
            store.read_into("where", 0, [bytearray(5)])

        assert caught.value.key == "where"
        assert caught.value.op
        assert caught.value.backend

    def test_stat_gives_key_and_size(self, store: ObjectStore) -> None:
        self.plant(store, "stat", b"01234")

        info = store.stat("stat")

        assert info is not None
        assert (info.key, info.nbytes) == ("stat", 5)

    def test_stat_of_a_missing_object_is_none(self, store: ObjectStore) -> None:
        assert store.stat("missing") is None

    def test_targets_are_free_after_a_read(self, store: ObjectStore) -> None:
        self.plant(store, "free", b"0123")
        hit, miss, out_of_range = bytearray(4), bytearray(4), bytearray(5)

        assert store.read_into("free", 0, [hit])
        assert not store.read_into("missing", 0, [miss])
        with pytest.raises(RangeError):
            store.read_into("free", 0, [out_of_range])

        gc.collect()  # The raised error may hold frames in a cycle; that is not the store's reference.
        assert_released([hit, miss, out_of_range])
