"""The host tier: one arena of pages that devices and stores reach without copies."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from math import gcd
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from hicache_storage.engine_integration.tiers.arena import Arena, HugePages
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.errors import ConfigError, InvariantError
from hicache_storage.store import ObjectStore

_PORTABLE_AND_MAPPED = 1 | 2
"""cudaHostRegister: page-locked for every device, and readable by kernels under its host address."""

_LARGEST_ALIGNMENT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPoolOptions:
    """How a host pool's memory is made.

    Attributes:
        pinned: page-lock the memory for the GPU; None = where there is one.
        huge_pages: see `HugePages`.
        numa_node: take the memory from this node only, best the GPU's; None = from any.
        prefault: touch all of it at construction.
    """

    pinned: bool | None = None
    huge_pages: HugePages = "advised"
    numa_node: int | None = None
    prefault: bool = True


class HostPool:
    """Host pages in page_unified order, one behind the other in one piece of memory. Thread-safe.

    `slots` says which page is whose; the pool itself never looks at it but in `close`. Starts of pages are
    multiples of the largest power of two, up to 4096, that divides `page_nbytes`.

    Raises:
        ConfigError: the memory is not to be had as the options want it.

    Attributes:
        slots: the books: allocate, free, pin.
        num_pages: pages of the pool.
        page_nbytes: bytes of a page.
        pinned: whether the memory is page-locked.
    """

    def __init__(self, num_pages: int, page_nbytes: int, options: HostPoolOptions | None = None) -> None:
        options = options or HostPoolOptions()
        if num_pages < 1 or page_nbytes < 1:
            raise ConfigError(f"a host pool of {num_pages} pages of {page_nbytes} bytes holds nothing")
        self.pinned = _wants_pinned(options.pinned)
        self.slots = PageAllocator(num_pages)
        self.num_pages = num_pages
        self.page_nbytes = page_nbytes
        arena = Arena(
            num_pages * page_nbytes,
            huge_pages=options.huge_pages,
            numa_node=options.numa_node,
            prefault=options.prefault,
        )
        self._view: memoryview | None = arena.view
        self._rows = torch.frombuffer(arena.view, dtype=torch.uint8).view(num_pages, page_nbytes)
        self._lock = threading.Lock()
        self._attached: list[ObjectStore] = []
        if self.pinned:
            _lock_pages(arena.address, arena.view.nbytes)

    @property
    def rows(self) -> Tensor:
        """All pages, ``[num_pages, page_nbytes]``, uint8, contiguous; the pool's own memory."""
        self._open_view()
        return self._rows

    @property
    def page_alignment(self) -> int:
        """What the address of every page is a multiple of."""
        return gcd(self.page_nbytes, _LARGEST_ALIGNMENT)

    def page(self, page: int) -> memoryview:
        """Return one page as writable flat bytes; the pool's own memory, valid until `close`."""
        view = self._open_view()
        if not 0 <= page < self.num_pages:
            raise InvariantError(f"page {page} is not in the host pool's [0, {self.num_pages})")
        return view[page * self.page_nbytes : (page + 1) * self.page_nbytes]

    def pages(self, pages: Iterable[int]) -> list[memoryview]:
        """Return `page` of each of *pages*, as `PageStore` takes them."""
        return [self.page(page) for page in pages]

    def attach(self, store: ObjectStore) -> None:
        """Let *store* move bytes to and from this memory without copies, if it can; at any time.

        Raises:
            InvariantError: it is attached already.
            StoreError: the store refuses; it is not attached then.
        """
        with self._lock:
            view = self._open_view()
            if any(known is store for known in self._attached):
                raise InvariantError(f"store {store.name!r} is attached to this host pool already")
            if store.capabilities.memory_registration:
                store.register_memory(view)
            self._attached.append(store)

    def detach(self, store: ObjectStore) -> None:
        """Undo `attach`, after the store's last transfer and before its `close`.

        Raises:
            InvariantError: it is not attached.
        """
        with self._lock:
            view = self._open_view()
            if not any(known is store for known in self._attached):
                raise InvariantError(f"store {store.name!r} is not attached to this host pool")
            self._attached = [known for known in self._attached if known is not store]
            _unregister(store, view)

    def close(self) -> None:
        """Withdraw the memory from every store and from the device. Calling it again does nothing.

        Pages that are held go with the pool; whoever closes it has no more use for them. The memory itself is
        returned once nobody has a view of it.

        Raises:
            InvariantError: a page is pinned, so a transfer may be at work in it; the pool stays open.
        """
        with self._lock:
            view = self._view
            if view is None:
                return
            if self.slots.num_pinned:
                raise InvariantError(f"{self.slots.num_pinned} host pages are pinned by transfers; end those first")
            address = self._rows.data_ptr()
            self._view, self._rows = None, torch.empty(0, dtype=torch.uint8)
            with ExitStack() as steps:
                if self.pinned:
                    steps.callback(_unlock_pages, address)
                for store in self._attached:
                    steps.callback(_unregister, store, view)
                self._attached = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_view(self) -> memoryview:
        view = self._view
        if view is None:
            raise InvariantError("the host pool is closed")
        return view


def _unregister(store: ObjectStore, view: memoryview) -> None:
    if store.capabilities.memory_registration:
        store.unregister_memory(view)


def _wants_pinned(pinned: bool | None) -> bool:
    if pinned and not torch.cuda.is_available():
        raise ConfigError("pinned = true, but torch finds no GPU to page-lock memory for; leave it out or say false")
    return torch.cuda.is_available() if pinned is None else pinned


def _lock_pages(address: int, nbytes: int) -> None:
    # Without a context the registration would fail, or bind to a device that the engine does not use.
    torch.cuda.init()  # type: ignore[no-untyped-call]
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(runtime.cudaHostRegister(address, nbytes, _PORTABLE_AND_MAPPED))
    if status:
        raise ConfigError(f"{nbytes} bytes cannot be page-locked: CUDA error {status}; see `ulimit -l` and free memory")


def _unlock_pages(address: int) -> None:
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(runtime.cudaHostUnregister(address))
    if status:
        raise InvariantError(f"page-locked memory at {address:#x} cannot be released: CUDA error {status}")
