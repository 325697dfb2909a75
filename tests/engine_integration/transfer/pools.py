"""Device pools of random bytes, their host pages built by plain indexing, and workers that wait for the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from hicache_storage.engine_integration.tiers.host import HostPool, HostPoolOptions
from hicache_storage.kernels import DevicePool

SEED = 20260801
DEADLINE_S = 60
POISON = 0xA5
PAGE_TOKENS = 4


def random_pool(
    *, layers: int = 3, heads: int = 4, k_dim: int = 8, v_dim: int = 8, num_pages: int = 12, seed: int = SEED
) -> DevicePool:
    """Return a pool of random bf16 patterns, NaNs included; *heads* = 0 makes a latent pool."""
    make = torch.Generator().manual_seed(seed)
    slots = num_pages * PAGE_TOKENS

    def rows(dim: int) -> Tensor:
        bits = torch.randint(-(1 << 15), 1 << 15, (slots, heads or 1, dim), generator=make, dtype=torch.int16)
        return bits.view(torch.bfloat16)

    keys = [rows(k_dim) for _ in range(layers)]
    return DevicePool.of_layers(keys, [rows(v_dim) for _ in range(layers)] if heads else [], PAGE_TOKENS)


def zeroed(pool: DevicePool) -> DevicePool:
    """Return a pool like *pool* with nothing in it."""
    return DevicePool.of_layers(
        [torch.zeros_like(key) for key in pool.keys], [torch.zeros_like(value) for value in pool.values], PAGE_TOKENS
    )


def host_for(pool: DevicePool, group_heads: int, num_pages: int = 16) -> HostPool:
    host = HostPool(num_pages, pool.page_format(group_heads).page_nbytes, HostPoolOptions(pinned=False))
    host.rows.fill_(POISON)
    return host


def expected_page(pool: DevicePool, page: int, group_heads: int) -> bytes:
    """Return the host page of *page*: head group, layer, K/V, token, head, dim."""
    slots = slice(page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS)
    parts: list[bytes] = []
    for group in range(0, pool.num_heads, group_heads or 1):
        heads = slice(group, group + (group_heads or 1))
        for layer in range(pool.num_layers):
            parts += [_bytes(tensors[layer][slots, heads]) for tensors in (pool.keys, pool.values) if tensors]
    return b"".join(parts)


def filled_host(pool: DevicePool, group_heads: int, num_pages: int = 16) -> HostPool:
    """Return a host pool that holds page p of *pool* in host page p."""
    host = host_for(pool, group_heads, num_pages)
    for page in range(pool.num_pages):
        host.page(page)[:] = expected_page(pool, page, group_heads)
    return host


def same_layer(left: DevicePool, right: DevicePool, layer: int, pages: Sequence[tuple[int, int]]) -> bool:
    """Whether *layer* of the left page equals that of the right page, for each pair of *pages*."""
    pairs = [(left.keys, right.keys), (left.values, right.values)] if left.values else [(left.keys, right.keys)]
    return all(
        _bytes(mine[layer][_slots(here)]) == _bytes(theirs[layer][_slots(there)])
        for mine, theirs in pairs
        for here, there in pages
    )


def _slots(page: int) -> slice:
    return slice(page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS)


def _bytes(rows: Tensor) -> bytes:
    return rows.contiguous().view(torch.uint8).numpy().tobytes()


class Gate:
    """Holds a kernel back until the test lets it go, and says when it has got there."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)

    def let_go(self, times: int = 1) -> None:
        self._passes.release(times)

    def wait_until_reached(self) -> None:
        assert self.reached.acquire(timeout=DEADLINE_S)

    def before(self, kernel: Callable[..., None]) -> Callable[..., None]:
        """Return *kernel* with this gate before it."""

        def held(*args: object, **kwargs: object) -> None:
            self.reached.release()
            assert self._passes.acquire(timeout=DEADLINE_S)
            kernel(*args, **kwargs)

        return held


@contextmanager
def gate_before(module: object, kernel: str) -> Iterator[Gate]:
    """Put a gate before *kernel* as *module* calls it."""
    gate = Gate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, kernel, gate.before(getattr(module, kernel)))
        yield gate
