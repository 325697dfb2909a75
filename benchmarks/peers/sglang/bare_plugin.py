"""The least that SGLang's `dynamic` backend takes: host pages to files and back by writev and readv, nothing checked.

The limit for a plug-in of one thread: no copy, no checksum, no temporary file's flush, no limit on the number of files.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig, HiCacheStorageExtraInfo


class BareFiles(HiCacheStorage):  # type: ignore[misc] # SGLang has no types
    """One file per page in the folder ``dir``, under the page's hash and the rank's number."""

    def __init__(self, config: HiCacheStorageConfig, _: object) -> None:
        self._folder = Path(config.extra_config["dir"])
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rank = f"{config.pp_rank}-{config.tp_rank}"

    def batch_exists(self, keys: list[str], _: HiCacheStorageExtraInfo | None = None) -> int:
        there = (self._path(key).exists() for key in keys)
        return next((number for number, exists in enumerate(there) if not exists), len(keys))

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, _: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        for key, runs in zip(keys, self._pages(host_indices, len(keys)), strict=True):
            path = self._path(key)
            file = os.open(path.with_suffix(".tmp"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                os.writev(file, runs)
            finally:
                os.close(file)
            path.with_suffix(".tmp").replace(path)
        return [True] * len(keys)

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, _: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        pages = self._pages(host_indices, len(keys))
        return [self._read(key, runs) for key, runs in zip(keys, pages, strict=True)]

    def exists(self, key: str) -> bool:
        return self._path(key).exists()

    def _never_called(self, *_: object) -> None:
        raise NotImplementedError("the copying interface: SGLang does not use it with interface_v1")

    get = batch_get = set = batch_set = _never_called

    def clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}-{self._rank}"

    def _read(self, key: str, runs: list[memoryview]) -> bool:
        with suppress(FileNotFoundError):
            file = os.open(self._path(key), os.O_RDONLY)
            try:
                return os.readv(file, runs) == sum(run.nbytes for run in runs)
            finally:
                os.close(file)
        return False

    def _pages(self, host_indices: torch.Tensor, count: int) -> Iterator[list[memoryview]]:
        """Yield the memory of each page, in the pieces that the host pool names."""
        pointers, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        pieces = [
            memoryview((ctypes.c_char * size).from_address(pointer)).cast("B")
            for pointer, size in zip(pointers, sizes, strict=True)
        ]
        each = len(pieces) // count
        for number in range(count):
            yield pieces[number * each : (number + 1) * each]
