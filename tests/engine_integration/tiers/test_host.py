"""One arena that devices and stores reach without copies."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path

import pytest
import torch

from hicache_storage.engine_integration.tiers import arena
from hicache_storage.engine_integration.tiers.arena import HUGE_PAGE_NBYTES, Arena, online_nodes
from hicache_storage.engine_integration.tiers.host import HostPool, HostPoolOptions
from hicache_storage.errors import ConfigError, InvariantError, StoreUnavailable
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import WritableBuffer

UNPINNED = HostPoolOptions(pinned=False)


def address_of(page: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(page))


def test_pages_and_rows_are_the_same_memory() -> None:
    pool = HostPool(3, 100, UNPINNED)

    pool.page(1)[:] = bytes(range(100))
    pool.rows[2].fill_(7)

    assert pool.rows[1].tolist() == list(range(100))
    assert bytes(pool.page(2)) == bytes([7]) * 100
    assert bytes(pool.page(0)) == bytes(100)
    assert (tuple(pool.rows.shape), pool.rows.dtype, pool.rows.is_contiguous()) == ((3, 100), torch.uint8, True)


def test_pages_are_writable_flat_bytes() -> None:
    page = HostPool(2, 64, UNPINNED).pages([1])[0]

    assert (page.format, page.nbytes, page.readonly, page.c_contiguous) == ("B", 64, False, True)


@pytest.mark.parametrize(("page_nbytes", "alignment"), [(8192, 4096), (3 * 64, 64), (1 << 20, 4096), (100, 4)])
def test_pages_start_where_devices_and_disks_like_it(page_nbytes: int, alignment: int) -> None:
    pool = HostPool(5, page_nbytes, UNPINNED)

    assert pool.page_alignment == alignment
    assert all(address_of(pool.page(page)) % alignment == 0 for page in range(5))
    assert address_of(pool.page(0)) % HUGE_PAGE_NBYTES == 0


@pytest.mark.parametrize("page", [-1, 3])
def test_a_page_that_is_not_there_is_refused(page: int) -> None:
    with pytest.raises(InvariantError, match=rf"page {page} is not in the host pool's \[0, 3\)"):
        HostPool(3, 64, UNPINNED).page(page)


@pytest.mark.parametrize(("num_pages", "page_nbytes"), [(0, 64), (3, 0)])
def test_an_empty_pool_is_refused(num_pages: int, page_nbytes: int) -> None:
    with pytest.raises(ConfigError):
        HostPool(num_pages, page_nbytes, UNPINNED)


def test_the_books_have_the_pools_pages() -> None:
    pool = HostPool(3, 64, UNPINNED)

    assert pool.slots.allocate(3) == [0, 1, 2]


# -- stores ------------------------------------------------------------------------------------------------------------


class RegisteringStore(MemoryStore):
    """A store that wants to know memory, and writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = dataclasses.replace(self.capabilities, memory_registration=True)
        self.calls: list[tuple[str, int, int]] = []
        self.fault: StoreUnavailable | None = None

    def register_memory(self, buffer: WritableBuffer) -> None:
        if self.fault:
            raise self.fault
        assert isinstance(buffer, memoryview)
        self.calls.append(("register", address_of(buffer), buffer.nbytes))

    def unregister_memory(self, buffer: WritableBuffer) -> None:
        assert isinstance(buffer, memoryview)
        self.calls.append(("unregister", address_of(buffer), buffer.nbytes))
        if self.fault:
            raise self.fault


def test_a_store_learns_the_whole_arena_once_and_forgets_it_once() -> None:
    store = RegisteringStore()
    pool = HostPool(3, 64, UNPINNED)
    where = (pool.rows.data_ptr(), 192)

    pool.attach(store)
    pool.detach(store)
    pool.attach(store)
    pool.close()
    pool.close()

    assert store.calls == [("register", *where), ("unregister", *where)] * 2


def test_a_store_that_does_not_care_is_not_asked() -> None:
    store = RegisteringStore()
    store.capabilities = dataclasses.replace(store.capabilities, memory_registration=False)

    with HostPool(3, 64, UNPINNED) as pool:
        pool.attach(store)
        pool.detach(store)

    assert store.calls == []


def test_a_store_is_attached_once() -> None:
    store = RegisteringStore()
    pool = HostPool(3, 64, UNPINNED)
    pool.attach(store)

    with pytest.raises(InvariantError, match="attached to this host pool already"):
        pool.attach(store)

    pool.detach(store)
    with pytest.raises(InvariantError, match="not attached"):
        pool.detach(store)


def test_a_store_that_refuses_is_not_attached() -> None:
    store = RegisteringStore()
    store.fault = StoreUnavailable("planted")
    pool = HostPool(3, 64, UNPINNED)

    with pytest.raises(StoreUnavailable):
        pool.attach(store)

    store.fault = None
    pool.attach(store)


def test_closing_withdraws_from_every_store_also_when_one_fails() -> None:
    stores = [RegisteringStore(), RegisteringStore(), RegisteringStore()]
    pool = HostPool(3, 64, UNPINNED)
    for store in stores:
        pool.attach(store)
    stores[1].fault = StoreUnavailable("planted")

    with pytest.raises(StoreUnavailable):
        pool.close()

    assert [store.calls[-1][0] for store in stores] == ["unregister"] * 3


# -- closing -----------------------------------------------------------------------------------------------------------


def test_a_closed_pool_gives_nothing() -> None:
    pool = HostPool(3, 64, UNPINNED)
    pool.close()

    for use in (lambda: pool.rows, lambda: pool.page(0), lambda: pool.attach(MemoryStore())):
        with pytest.raises(InvariantError, match="closed"):
            use()


def test_a_pool_with_held_pages_can_be_closed_and_one_with_pinned_pages_cannot() -> None:
    pool = HostPool(3, 64, UNPINNED)
    pages = pool.slots.allocate(2)
    pool.slots.pin(pages)

    with pytest.raises(InvariantError, match="2 host pages are pinned"):
        pool.close()
    pool.page(0)[:] = bytes(64)

    pool.slots.unpin(pages)
    pool.close()


def test_a_view_outlives_its_pool() -> None:
    pool = HostPool(3, 64, UNPINNED)
    page = pool.page(1)
    page[:] = b"x" * 64

    pool.close()

    assert bytes(page) == b"x" * 64


# -- how the memory is made --------------------------------------------------------------------------------------------


class FakeCudart:
    """CUDA's runtime as far as page-locking goes."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.calls: list[tuple[object, ...]] = []

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("register", address, nbytes, flags))
        return self.status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("unregister", address))
        return self.status


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> FakeCudart:
    fake = FakeCudart()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    return fake


@pytest.mark.parametrize("pinned", [None, True])
def test_with_a_gpu_the_arena_is_page_locked_once_and_released_once(cudart: FakeCudart, pinned: bool | None) -> None:
    pool = HostPool(3, 64, HostPoolOptions(pinned=pinned))
    address = pool.rows.data_ptr()

    pool.close()
    pool.close()

    assert pool.pinned
    assert cudart.calls == [("register", address, 192, 3), ("unregister", address)]


def test_memory_that_cannot_be_page_locked_is_an_error(cudart: FakeCudart) -> None:
    cudart.status = 2

    with pytest.raises(ConfigError, match="192 bytes cannot be page-locked: CUDA error 2"):
        HostPool(3, 64)


def test_without_a_gpu_memory_is_unpinned_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert not HostPool(3, 64).pinned
    with pytest.raises(ConfigError, match="no GPU"):
        HostPool(3, 64, HostPoolOptions(pinned=True))


def test_a_numa_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="numa_node = 4096: this machine has memory on 0"):
        HostPool(3, 64, HostPoolOptions(pinned=False, numa_node=4096))


def test_memory_can_be_bound_to_a_node_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[tuple[int, int, int]] = []
    monkeypatch.setattr(arena, "bind_to_node", lambda *call: bound.append(call))

    memory = Arena(100, numa_node=online_nodes()[0])

    assert bound == [(memory.address, HUGE_PAGE_NBYTES, online_nodes()[0])]


def test_a_kernel_that_does_not_bind_is_an_error() -> None:
    with pytest.raises(ConfigError, match="numa_node = 900: the kernel refuses to bind 4096 bytes"):
        arena.bind_to_node(Arena(4096).address, 4096, 900)


@pytest.mark.parametrize(("listing", "nodes"), [("0\n", [0]), ("0-2,5\n", [0, 1, 2, 5]), ("\n", [])])
def test_nodes_are_what_the_kernel_lists(tmp_path: Path, listing: str, nodes: list[int]) -> None:
    folder = tmp_path / "sys/devices/system/node"
    folder.mkdir(parents=True)
    (folder / "has_memory").write_text(listing)

    assert online_nodes(tmp_path) == nodes


def test_a_kernel_without_nodes_has_node_zero(tmp_path: Path) -> None:
    assert online_nodes(tmp_path) == [0]


@pytest.mark.parametrize("huge_pages", ["advised", "none"])
def test_memory_is_zero_whatever_its_pages(huge_pages: arena.HugePages) -> None:
    memory = Arena(3 * HUGE_PAGE_NBYTES + 5, huge_pages=huge_pages)

    assert memory.view.nbytes == 3 * HUGE_PAGE_NBYTES + 5
    assert not any(memory.view)


def test_reserved_huge_pages_are_there_or_refused() -> None:
    reserved = int(Path("/proc/sys/vm/nr_hugepages").read_text())

    if reserved < 2:
        with pytest.raises(ConfigError, match=r"reserved huge pages \(vm.nr_hugepages\)"):
            Arena(2 * HUGE_PAGE_NBYTES * (reserved + 1), huge_pages="reserved")
    else:
        assert not any(Arena(HUGE_PAGE_NBYTES, huge_pages="reserved").view)


def test_an_unknown_kind_of_pages_is_refused() -> None:
    with pytest.raises(ConfigError, match="gigantic"):
        Arena(100, huge_pages="gigantic")  # type: ignore[arg-type]
