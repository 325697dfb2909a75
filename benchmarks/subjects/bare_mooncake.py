"""The bare SDK of Mooncake on registered memory: one call a batch, divided by the SDK among threads of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mooncake.store import MooncakeDistributedStore

from benchmarks.memory import Arena
from benchmarks.subject import SubjectFailed, timed
from benchmarks.subjects.striped import Striped
from benchmarks.workload import Workload, stripes


class BareMooncake(Striped):
    """`batch_put_from`, `batch_get_into` and `get_into_ranges` on whole batches.

    Args:
        options: of the cluster, as `MooncakeService.options` has them.
    """

    def __init__(self, options: Mapping[str, object], version: str, page_cache: str) -> None:
        self.version = version
        self.page_cache = page_cache
        self.calls = {
            "write": "MooncakeDistributedStore.batch_put_from",
            "read": "MooncakeDistributedStore.batch_get_into",
            "ranged": "MooncakeDistributedStore.get_into_ranges",
            "exists": "MooncakeDistributedStore.batch_is_exist",
        }
        self._sdk = MooncakeDistributedStore()
        host, metadata, master = (
            str(options[name]) for name in ("local_hostname", "metadata_server", "master_server_address")
        )
        if code := self._sdk.setup(host, metadata, 0, 0, "tcp", "", master):
            raise SubjectFailed(f"the SDK does not reach the master: {code}")

    def prepare(self, workload: Workload) -> None:
        super().prepare(replace(workload, threads=1))
        self._batches = [stripes(batch, 1) for batch in workload.batches()]
        self._put_at = self._register(self._source)
        self._get_at = self._register(self._target)
        self._keys = [f"bare-{workload.object_nbytes}-{n}" for n in range(workload.objects)]

    def exists(self) -> float:
        batches = [[self._keys[n] for n in batch] for batch in self._workload.batches()]
        return timed(lambda: [self._sdk.batch_is_exist(keys) for keys in batches])

    def wipe(self) -> None:
        self._sdk.remove_all(True)  # noqa: FBT003 - the SDK's signature: whatever leases there are

    def release(self) -> None:
        for base in (self._put_at, self._get_at):
            self._sdk.unregister_buffer(base)
        super().release()

    def close(self) -> None:
        """End the SDK's client; the subject cannot be used afterwards."""
        self._sdk.close()

    def _write(self, numbers: Sequence[int]) -> None:
        nbytes = self._workload.object_nbytes
        keys = [self._keys[n] for n in numbers]
        _check(
            self._sdk.batch_put_from(keys, [self._put_at + n * nbytes for n in numbers], [nbytes] * len(keys)),
            [0] * len(keys),
        )

    def _read(self, numbers: Sequence[int], first_byte: int) -> None:
        nbytes = self._workload.object_nbytes
        keys = [self._keys[n] for n in numbers]
        if not first_byte:
            addresses = [self._get_at + n * nbytes for n in numbers]
            _check(self._sdk.batch_get_into(keys, addresses, [nbytes] * len(keys)), [nbytes] * len(keys))
            return
        rest = nbytes - first_byte
        to = [[n * nbytes + first_byte] for n in numbers]
        start, length = [[first_byte]] * len(keys), [[rest]] * len(keys)
        answer = self._sdk.get_into_ranges([self._get_at], [keys], [to], [start], [length])
        _check(answer[0], length)

    def _register(self, arena: Arena) -> int:
        base = ctypes.addressof(ctypes.c_char.from_buffer(arena.whole))
        self._sdk.register_buffer(base, arena.whole.nbytes)
        return base


def _check(codes: Sequence[object], wanted: Sequence[object]) -> None:
    if list(codes) != list(wanted):
        raise SubjectFailed(f"the SDK answers {codes!r:.80}")
