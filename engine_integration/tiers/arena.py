"""One piece of host memory: where it lies, how large its kernel pages are, and that all of it is really there.

Torch-free. The memory goes back to the system when the arena and every view of it are gone.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, get_args

from hicache_storage.errors import ConfigError

HugePages = Literal["advised", "reserved", "none"]
"""``advised``: the kernel uses large pages where it has them. ``reserved``: from the pool that the operator has
set aside (``vm.nr_hugepages``), or not at all. ``none``: small pages."""

HUGE_PAGE_NBYTES = 2 << 20
_PREFAULT_NBYTES = 64 << 20

_MAP_HUGETLB = 0x40000
_MAP_HUGE_2MB = 21 << 26
_MPOL_BIND = 2
_MBIND = {"x86_64": 237, "aarch64": 235, "riscv64": 235, "ppc64le": 259, "s390x": 268}
"""Number of the system call; libc has no function for it."""


class Arena:
    """Zeroed memory of this process alone, its start aligned to 2 MiB.

    Args:
        nbytes: size, at least 1.
        huge_pages: see `HugePages`.
        numa_node: the memory comes from this node only; None = from wherever the kernel likes.
        prefault: touch all of it now, on several threads, so that no transfer waits for the kernel to find memory.

    Raises:
        ConfigError: the kernel refuses, or there is no such node.

    Attributes:
        address: of the first byte.
        view: all of it, writable flat bytes.
    """

    def __init__(
        self, nbytes: int, *, huge_pages: HugePages = "advised", numa_node: int | None = None, prefault: bool = True
    ) -> None:
        if nbytes < 1 or huge_pages not in get_args(HugePages):
            raise ConfigError(f"an arena of {nbytes} bytes with huge_pages = {huge_pages!r} cannot be made")
        if numa_node is not None:
            check_node(numa_node)
        mapped = -(-nbytes // HUGE_PAGE_NBYTES) * HUGE_PAGE_NBYTES
        if huge_pages == "reserved":
            memory, start = _map(mapped, _MAP_HUGETLB | _MAP_HUGE_2MB), 0
        else:
            memory = _map(mapped + HUGE_PAGE_NBYTES, 0)
            start = -_address(memory) % HUGE_PAGE_NBYTES
        if huge_pages == "advised":
            _advise_huge_pages(memory)
        self.address = _address(memory) + start
        self.view = memoryview(memory)[start : start + nbytes]
        if numa_node is not None:
            bind_to_node(self.address, mapped, numa_node)
        if prefault:
            self._prefault()

    def _prefault(self) -> None:
        """Write every byte. memset lets go of the interpreter's lock, so the threads run side by side."""
        nbytes = self.view.nbytes
        threads = min(len(os.sched_getaffinity(0)), 16)
        with ThreadPoolExecutor(threads, thread_name_prefix="hicache-prefault") as pool:
            for start in range(0, nbytes, _PREFAULT_NBYTES):
                pool.submit(ctypes.memset, self.address + start, 0, min(_PREFAULT_NBYTES, nbytes - start))


def online_nodes(root: Path = Path("/")) -> list[int]:
    """Return the NUMA nodes that have memory; ``[0]`` where the kernel does not say."""
    for name in ("has_memory", "online"):
        try:
            listing = (root / "sys/devices/system/node" / name).read_text()
        except OSError:
            continue
        return list(_listed(listing))
    return [0]


def check_node(node: int, root: Path = Path("/")) -> None:
    """Raise `ConfigError` unless the machine has memory on NUMA node *node*."""
    nodes = online_nodes(root)
    if node not in nodes:
        raise ConfigError(f"numa_node = {node}: this machine has memory on {', '.join(map(str, nodes))}")


def bind_to_node(address: int, nbytes: int, node: int) -> None:
    """Let memory that is not touched yet come from *node* only.

    Raises:
        ConfigError: the kernel refuses, for instance because the container may not use the node.
    """
    number = _MBIND.get(platform.machine())
    if number is None:
        raise ConfigError(f"numa_node = {node}: not known how to bind memory on {platform.machine()}")
    words = (ctypes.c_ulong * (node // 64 + 1))()
    words[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    # syscall is variadic: without a type, ctypes would pass the 64-bit address as a C int.
    arguments = (address, nbytes, _MPOL_BIND, ctypes.addressof(words), len(words) * 64 + 1, 0)
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments)) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise ConfigError(f"numa_node = {node}: the kernel refuses to bind {nbytes} bytes: {reason}")


def _map(nbytes: int, flags: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    except OSError as error:
        kind = "reserved huge pages (vm.nr_hugepages)" if flags else "memory"
        raise ConfigError(f"{nbytes} bytes of {kind} are not to be had: {error.strerror}") from error


def _advise_huge_pages(memory: mmap.mmap) -> None:
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        # A kernel built without them.
        if error.errno != errno.EINVAL:
            raise


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _listed(text: str) -> Iterator[int]:
    """Yield the numbers of a kernel list such as ``0-2,5``."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
