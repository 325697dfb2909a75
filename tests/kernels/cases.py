"""Pools of every kind in guarded memory, and the checks that each implementation must pass on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hicache_storage.kernels import DevicePool, Impl, gather_pages, scatter_pages
from tests.kernels import oracle
from tests.kernels.guard import Guarded, guarded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Case:
    """One kind of pool.

    Attributes:
        dims: elements of a K and of a V head; of the latent row alone for MLA.
        padding: elements between one slot's heads and the next slot's.
        shift: bytes by which tensors start off a multiple of 16.
        stacked: all layers in one tensor.
    """

    name: str
    layers: int
    heads: int
    group_heads: int
    dims: tuple[int, ...]
    dtype: torch.dtype
    page_tokens: int
    pages: int = 4
    padding: int = 0
    shift: int = 0
    stacked: bool = False

    @property
    def geometry(self) -> oracle.Geometry:
        nbytes = tuple(dim * self.dtype.itemsize for dim in self.dims)
        return oracle.Geometry(self.layers, self.heads, self.group_heads, nbytes, self.page_tokens)


@dataclass(frozen=True)
class Built:
    """A pool in guarded memory, with the bytes behind it.

    Attributes:
        planes: by layer and K/V ``[slots, slot_nbytes]``, uint8; views of *arenas*.
    """

    pool: DevicePool
    arenas: tuple[Guarded, ...]
    planes: tuple[tuple[Tensor, ...], ...]

    def planes_on_host(self) -> list[list[oracle.Bytes]]:
        return [[plane.cpu().numpy().copy() for plane in layer] for layer in self.planes]


CASES = [
    Case("head_groups", 3, 4, 2, (8, 8), torch.bfloat16, 4),
    Case("one_group", 2, 3, 3, (16, 16), torch.float16, 3),
    Case("one_of_everything", 1, 1, 1, (1, 1), torch.int8, 1, pages=1),
    Case("two_of_everything", 2, 2, 1, (2, 2), torch.bfloat16, 2, pages=2),
    Case("three_bytes", 3, 3, 1, (3, 3), torch.uint8, 3),
    Case("wider_keys", 2, 4, 2, (24, 16), torch.float16, 3),
    Case("inline_scales", 2, 2, 1, (528, 528), torch.uint8, 2, pages=3),
    Case("distant_slots", 2, 2, 1, (8, 8), torch.bfloat16, 3, padding=4),
    Case("misaligned", 2, 2, 2, (8, 8), torch.bfloat16, 3, shift=2),
    Case("fp8", 2, 4, 2, (12, 12), torch.float8_e4m3fn, 2),
    Case("fp8_other", 1, 2, 2, (20, 20), torch.float8_e5m2, 2),
    Case("fp32", 2, 2, 1, (4, 4), torch.float32, 1),
    Case("stacked", 3, 4, 2, (8, 8), torch.bfloat16, 3, stacked=True),
    Case("stacked_one_group", 2, 3, 3, (4, 4), torch.float32, 2, stacked=True),
    Case("mla", 3, 1, 1, (36,), torch.bfloat16, 3),
    Case("mla_distant_slots", 2, 1, 1, (528,), torch.uint8, 2, padding=128),
    Case("mla_stacked", 3, 1, 1, (20,), torch.bfloat16, 2, stacked=True),
    Case("several_blocks", 1, 1, 1, (1100, 1100), torch.bfloat16, 5, pages=2),
]
BY_NAME = {case.name: case for case in CASES}


def build(case: Case, *, seed: int | None) -> Built:
    """Return a pool of *case* full of random bytes, or of poison if *seed* is ``None``."""
    slots, item = case.pages * case.page_tokens, case.dtype.itemsize
    slot_nbytes = [(case.heads * dim + case.padding) * item for dim in case.dims]
    sizes = [slots * nbytes for nbytes in slot_nbytes] * case.layers
    arenas = [guarded(sum(sizes), device=DEVICE, shift=case.shift)] if case.stacked else []
    arenas = arenas or [guarded(size, device=DEVICE, shift=case.shift) for size in sizes]
    bodies = list(torch.split(arenas[0].body, sizes)) if case.stacked else [arena.body for arena in arenas]
    if seed is not None:
        for number, body in enumerate(bodies):
            body.copy_(random_bytes(body.numel(), seed + number))
    parts = len(case.dims)
    planes = [body.view(slots, slot_nbytes[number % parts]) for number, body in enumerate(bodies)]
    rows = [
        plane.view(case.dtype)[:, : case.heads * case.dims[number % parts]].view(slots, case.heads, -1)
        for number, plane in enumerate(planes)
    ]
    if case.stacked:
        kv = arenas[0].body.view(case.dtype).view(case.layers, *([2] if parts == 2 else []), *rows[0].shape)
        pool = DevicePool.of_stacked(kv, case.page_tokens)
    else:
        pool = DevicePool.of_layers(rows[::parts], rows[1::2] if parts == 2 else (), case.page_tokens)
    by_layer = tuple(tuple(planes[layer * parts : (layer + 1) * parts]) for layer in range(case.layers))
    return Built(pool, tuple(arenas), by_layer)


def random_bytes(count: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8))


def check_gather(case: Case, selection: oracle.Selection, impl: Impl) -> None:
    """Assert that a gather writes the bytes of the specification and none beside them."""
    built = build(case, seed=1)
    host = guarded(host_rows(selection) * case.geometry.page_nbytes, device=DEVICE, shift=case.shift)
    pages = host.body.view(host_rows(selection), -1)
    want = pages.cpu().numpy().copy()
    oracle.gather(case.geometry, built.planes_on_host(), want, selection)

    gather_pages(
        built.pool,
        torch.tensor(selection.page_ids),
        pages,
        group_heads=case.group_heads,
        impl=impl,
        rows=torch.tensor(selection.rows),
        layers=selection.layers,
        tail_tokens=selection.tail_tokens,
    )

    assert np.array_equal(pages.cpu().numpy(), want)
    host.assert_untouched_outside()


def check_scatter(case: Case, selection: oracle.Selection, impl: Impl) -> None:
    """Assert that a scatter writes the bytes of the specification and none beside them."""
    built = build(case, seed=None)
    pages = random_bytes(host_rows(selection) * case.geometry.page_nbytes, seed=2).view(host_rows(selection), -1)
    want = built.planes_on_host()
    oracle.scatter(case.geometry, want, pages.numpy(), selection)

    scatter_pages(
        shifted(pages, case.shift),
        built.pool,
        torch.tensor(selection.page_ids, dtype=torch.int32),
        group_heads=case.group_heads,
        impl=impl,
        rows=torch.tensor(selection.rows, dtype=torch.int32),
        layers=selection.layers,
        tail_tokens=selection.tail_tokens,
    )

    for got_layer, want_layer in zip(built.planes_on_host(), want, strict=True):
        for got, wanted in zip(got_layer, want_layer, strict=True):
            assert np.array_equal(got, wanted)
    for arena in built.arenas:
        arena.assert_untouched_outside()


def shifted(pages: Tensor, shift: int) -> Tensor:
    """Return a copy of *pages* on the device that starts *shift* bytes off a multiple of 16."""
    body = guarded(pages.numel(), device=DEVICE, shift=shift).body
    body.copy_(pages.flatten())
    return body.view(pages.shape)


def host_rows(selection: oracle.Selection) -> int:
    """Return a number of host pages with one to spare."""
    return max(selection.rows) + 2


def everything(case: Case) -> oracle.Selection:
    """Return a selection of whole pages, in descending order."""
    ids = list(range(case.pages))[::-1]
    return oracle.Selection(ids, range(len(ids)), range(case.layers), case.page_tokens)


def a_part(case: Case) -> oracle.Selection:
    """Return a selection of some pages into scattered rows, the last layers only, the last page ragged."""
    ids = [case.pages - 1, 0, case.pages // 2][: min(case.pages, 3)]
    rows = [3, 0, 1][: len(ids)]
    return oracle.Selection(ids, rows, range(case.layers // 2, case.layers), max(1, case.page_tokens - 1))
