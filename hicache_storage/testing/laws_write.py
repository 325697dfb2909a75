"""Laws of writing and deleting one object: exact bytes, immutability, ownership of buffers."""

from __future__ import annotations

import gc

import pytest

from hicache_storage.errors import StoreFull, Unsupported
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of
from hicache_storage.testing.hooks import StoreHooks, assert_lists, assert_released, fetched
from hicache_storage.types import ReadableBuffer, WriteResult


class WriteLaws(StoreHooks):
    """What was written is observed through the back door, so that a read with the same mistake cannot hide it."""

    @pytest.mark.parametrize("nbytes", [0, 1, 7, 4095, 4096, 4097, 65_537, (2 << 20) + 1])
    def test_a_write_stores_exactly_its_bytes(self, store: ObjectStore, nbytes: int) -> None:
        body = body_of("write", nbytes)

        assert store.write("write", [body]) is WriteResult.STORED

        assert self.observe(store, "write") == body

    def test_parts_are_concatenated(self, store: ObjectStore) -> None:
        body = body_of("parts", 100)
        parts: list[ReadableBuffer] = [
            body[:1],
            bytearray(body[1:50]),
            b"",
            memoryview(body)[50:70],
            memoryview(bytearray(body[70:])),
        ]

        store.write("parts", parts)

        assert self.observe(store, "parts") == body

    def test_no_parts_are_an_empty_object(self, store: ObjectStore) -> None:
        assert store.write("empty", []) is WriteResult.STORED

        assert self.observe(store, "empty") == b""

    def test_there_may_be_thousands_of_parts(self, store: ObjectStore) -> None:
        # More than the 1,024 buffers that one pwritev takes.
        body = body_of("thousands", 3000)

        store.write("thousands", [body[i : i + 1] for i in range(3000)])

        assert self.observe(store, "thousands") == body

    def test_what_was_written_is_read_back(self, store: ObjectStore) -> None:
        body = body_of("back", 4099)
        store.write("back", [body])

        assert fetched(store, "back", 0, 4099) == body
        assert fetched(store, "back", 4000, 99) == body[4000:]

    def test_an_object_that_is_there_stays_as_it_is(self, store: ObjectStore) -> None:
        self.plant(store, "there", b"0123")

        assert store.write("there", [b"abcd"]) is WriteResult.ALREADY_THERE

        assert self.observe(store, "there") == b"0123"

    def test_an_empty_object_that_is_there_stays(self, store: ObjectStore) -> None:
        self.plant(store, "there", b"")

        assert store.write("there", []) is WriteResult.ALREADY_THERE

    @pytest.mark.parametrize("damaged", [b"", b"012", b"01234", b"x" * 70_000], ids=len)
    def test_an_object_of_another_size_is_replaced(self, store: ObjectStore, damaged: bytes) -> None:
        self.plant(store, "damaged", damaged)

        assert store.write("damaged", [b"abcd"]) is WriteResult.STORED

        assert self.observe(store, "damaged") == b"abcd"

    def test_a_write_leaves_other_objects_alone(self, store: ObjectStore) -> None:
        self.plant(store, "neighbour", b"0123")

        store.write("neighbou", [b"a"])
        store.write("neighbour2", [b"abcdef"])

        assert self.observe(store, "neighbour") == b"0123"

    def test_a_writer_may_change_its_buffer_afterwards(self, store: ObjectStore) -> None:
        body = body_of("reused", 8192)
        buffer = bytearray(body)

        store.write("reused", [buffer])
        buffer[:] = bytes(len(buffer))

        assert self.observe(store, "reused") == body
        assert fetched(store, "reused", 0, len(body)) == body

    def test_sources_are_free_after_a_write(self, store: ObjectStore) -> None:
        stored, there, refused = bytearray(b"0123"), bytearray(b"0123"), bytearray(b"0123")

        store.write("free", [stored])
        store.write("free", [there])
        with pytest.raises(Unsupported):
            store.write("", [refused])

        gc.collect()  # The raised error may hold frames in a cycle; that is not the store's reference.
        assert_released([stored, there, refused])

    def test_a_store_with_an_object_limit_keeps_it(self, store: ObjectStore) -> None:
        limit = store.capabilities.max_object_nbytes
        nbytes = (4 << 20) + 1 if limit is None else limit + 1
        piece = memoryview(bytes(min(nbytes, 1 << 20)))
        parts = [piece] * (nbytes // len(piece)) + [piece[: nbytes % len(piece)]]

        if limit is None:
            assert store.write("large", parts) is WriteResult.STORED
        else:
            with pytest.raises((Unsupported, StoreFull)):
                store.write("large", parts)

        assert (self.observe(store, "large") is None) == (limit is not None)

    def test_a_deleted_object_is_gone(self, store: ObjectStore) -> None:
        self.plant(store, "deleted", b"0123")

        assert store.delete("deleted") is True

        assert self.observe(store, "deleted") is None
        assert fetched(store, "deleted", 0, 0) is None
        assert store.stat("deleted") is None
        assert_lists(store, "", [])

    def test_deleting_a_missing_object_says_so(self, store: ObjectStore) -> None:
        self.plant(store, "twice", b"0123")

        assert [store.delete("twice"), store.delete("twice"), store.delete("missing")] == [True, False, False]

    def test_a_delete_leaves_other_objects_alone(self, store: ObjectStore) -> None:
        self.plant(store, "a", b"0123")
        self.plant(store, "a/b", b"4567")

        store.delete("a")

        assert self.observe(store, "a/b") == b"4567"

    def test_a_deleted_key_can_be_written_again(self, store: ObjectStore) -> None:
        self.plant(store, "again", b"0123")
        store.delete("again")

        assert store.write("again", [b"abcd"]) is WriteResult.STORED

        assert self.observe(store, "again") == b"abcd"

    def test_a_quarantined_object_is_out_of_use(self, store: ObjectStore) -> None:
        self.plant(store, "bad", b"0123")

        assert store.quarantine("bad") is True

        assert fetched(store, "bad", 0, 4) is None
        assert store.stat("bad") is None
        assert_lists(store, "", [])

    def test_a_quarantined_key_can_be_written_again(self, store: ObjectStore) -> None:
        for damaged in (b"0123", b"4567"):
            self.plant(store, "bad", damaged)
            store.quarantine("bad")

        assert store.write("bad", [b"abcd"]) is WriteResult.STORED

        assert self.observe(store, "bad") == b"abcd"

    def test_quarantine_of_a_missing_object_says_so(self, store: ObjectStore) -> None:
        assert store.quarantine("missing") is False

    def test_registered_memory_is_read_and_written(self, store: ObjectStore) -> None:
        body = body_of("registered", 8192)
        arena = bytearray(body) + bytearray(8192)
        halves = memoryview(arena)[:8192], memoryview(arena)[8192:]
        store.register_memory(arena)

        store.write("registered", [halves[0]])
        assert store.read_into("registered", 0, [halves[1]])

        store.unregister_memory(arena)
        store.unregister_memory(bytearray(1))
        assert self.observe(store, "registered") == body
        assert arena == body * 2
