"""What a case asks of every subject: the same objects, cut into the same batches, for the same number of threads."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Objects of equal size under one folder, and the KV geometry that makes an object of that size.

    One object is one page of ``num_layers x 2 x page_tokens x kv_heads x head_dim`` bfloat16 elements, so
    that subjects with host pools of their own can build one; without KV heads a page of MLA, which has
    ``num_layers x page_tokens x head_dim``. All fields are plain values: a workload
    travels to a peer's process as JSON.

    Attributes:
        folder: empty folder on the filesystem that is measured; the subject's own.
        objects: objects in all; one pass moves each of them once.
        batch: objects per call.
        threads: I/O threads a subject may use; subjects that have one thread use one.
        group_heads: heads of a head group of page_unified pages; 0 = all.
        host_layout: the engine's order of a host pool, where a subject has one.
    """

    folder: str
    objects: int
    batch: int = 64
    threads: int = 1
    seed: int = 1
    num_layers: int = 32
    kv_heads: int = 2
    head_dim: int = 128
    page_tokens: int = 64
    group_heads: int = 0
    host_layout: str = "page_first"

    @property
    def object_nbytes(self) -> int:
        rows = 2 * self.kv_heads or 1
        return self.num_layers * self.page_tokens * rows * self.head_dim * 2

    @property
    def nbytes(self) -> int:
        return self.objects * self.object_nbytes

    def batches(self) -> Iterator[range]:
        """Yield the object numbers of each call."""
        for start in range(0, self.objects, self.batch):
            yield range(start, min(start + self.batch, self.objects))

    def content(self) -> bytes:
        """Return the payload of all objects, one behind the other: the same bytes for the same seed."""
        return random.Random(self.seed).randbytes(self.nbytes)

    def page_hash(self, number: int) -> str:
        """Return 64 hexadecimal digits that name object *number*."""
        return hashlib.sha256(f"{self.seed}/{number}".encode()).hexdigest()


def stripes(numbers: range, threads: int) -> list[range]:
    """Cut *numbers* into at most *threads* parts of nearly equal size, none of them empty."""
    parts = [numbers[index::threads] for index in range(threads)]
    return [part for part in parts if part]
