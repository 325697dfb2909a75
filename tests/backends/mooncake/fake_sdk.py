"""The SDK's client as a test wants it: objects in a dictionary, and calls that wait until they are let go."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_WAIT_S = 60.0


@dataclass
class FakeBuffer:
    size: int
    buffer_address: int
    transport_endpoint: str


@dataclass
class FakeMemory:
    buffer_descriptor: FakeBuffer


@dataclass
class FakeCopy:
    memory: FakeMemory

    def is_memory_replica(self) -> bool:
        return True

    def get_memory_descriptor(self) -> FakeMemory:
        return self.memory


class Gate:
    """Where calls wait. It says how many have come."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._came = threading.Semaphore(0)

    def pass_through(self) -> None:
        self._came.release()
        assert self._open.wait(_WAIT_S)

    def wait_for_one(self) -> None:
        assert self.has_one(_WAIT_S)

    def has_one(self, within_s: float) -> bool:
        return self._came.acquire(timeout=within_s)

    def open(self) -> None:
        self._open.set()


class FakeClient:
    """Stored bodies by name. A gate in `gates` holds every call of that name; `moved` says when one has ended."""

    def __init__(self, bodies: dict[str, bytes] | None = None) -> None:
        self.bodies = bodies or {}
        self.gates: dict[str, Gate] = {}
        self.ended: list[str] = []
        self.reserved: dict[str, bytearray] = {}
        self._changed = threading.Condition()

    def wait_for_end(self, call: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: call in self.ended, _WAIT_S)

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        return [int(key in self.bodies) for key in keys]

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[FakeCopy]]:
        # An object written again lies elsewhere: the address is its bytes' object.
        there = {key: self.bodies[key] for key in keys if key in self.bodies}
        return {key: [FakeCopy(FakeMemory(FakeBuffer(len(body), id(body), "node")))] for key, body in there.items()}

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        return [0 if key in self.bodies else -704 for key in keys]

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        return 0

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        def get() -> list[int]:
            moved = []
            for key, pointers, sizes, offsets in zip(keys, all_buffer_ptrs, all_sizes, all_src_offsets, strict=True):
                body = self.bodies.get(key)
                for pointer, nbytes, offset in zip(pointers, sizes, offsets, strict=True):
                    if body is not None:
                        ctypes.memmove(pointer, body[offset : offset + nbytes], nbytes)
                moved.append(-704 if body is None else sum(sizes))
            return moved

        return self._held("get", get)

    def batch_put_session_start(self, keys: Sequence[str], sizes: Sequence[int], config: object) -> list[int]:
        codes = []
        for key, nbytes in zip(keys, sizes, strict=True):
            taken = key in self.bodies or key in self.reserved
            if not taken:
                self.reserved[key] = bytearray(nbytes)
            codes.append(-705 if taken else 0)
        return codes

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        def put() -> list[int]:
            moved = []
            for key, pointers, sizes, offsets in zip(keys, all_buffer_ptrs, all_sizes, all_dst_offsets, strict=True):
                for pointer, nbytes, offset in zip(pointers, sizes, offsets, strict=True):
                    self.reserved[key][offset : offset + nbytes] = ctypes.string_at(pointer, nbytes)
                moved.append(sum(sizes))
            return moved

        return self._held("put", put)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        for key in keys:
            self.bodies[key] = bytes(self.reserved.pop(key))
        self._note("end")
        return [0] * len(keys)

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        for key in keys:
            del self.reserved[key]
        self._note("revoke")
        return [0] * len(keys)

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        return 0

    def unregister_buffer(self, buffer_ptr: int) -> int:
        return 0

    def _held(self, name: str, call: Callable[[], T]) -> T:
        gate = self.gates.get(name)
        if gate is not None:
            gate.pass_through()
        result = call()
        self._note(name)
        return result

    def _note(self, name: str) -> None:
        with self._changed:
            self.ended.append(name)
            self._changed.notify_all()
