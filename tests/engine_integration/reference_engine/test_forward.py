"""One rank computes pieces: where its KV lands, what it reads, and for which layer of a restore it waits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hicache_storage.engine_integration.reference_engine.forward import Forward
from hicache_storage.engine_integration.reference_engine.kv_pool import rows_of, store_rows
from hicache_storage.engine_integration.reference_engine.model import Stage, load_stage
from hicache_storage.engine_integration.reference_engine.peers import NoPeers
from hicache_storage.engine_integration.reference_engine.pieces import Computed, Piece, Sampling
from hicache_storage.errors import HiCacheError
from hicache_storage.kernels import DevicePool
from tests.engine_integration.reference_engine.asking import PAGE_TOKENS, SHAPES, config, prompt

TOKENS = prompt(1, 18)
PAGES = [7, 2, 9, 4, 0]
"""Neither in order nor together, as an allocator leaves them."""

NUM_PAGES = 11
GREEDY = Sampling()


@pytest.fixture(params=SHAPES)
def stage(request: pytest.FixtureRequest) -> Stage:
    return load_stage(config(SHAPES[request.param]), lambda tensor: tensor, tp_rank=0, pp_rank=0)


def layers_of(pool: DevicePool) -> list[Tensor]:
    return [*pool.keys, *pool.values]


def slots(pages: list[int]) -> list[int]:
    return [page * PAGE_TOKENS + at for page in pages for at in range(PAGE_TOKENS)]


def poisoned(stage: Stage) -> DevicePool:
    pool = stage.new_pool(NUM_PAGES, PAGE_TOKENS)
    for layer in layers_of(pool):
        layer.fill_(-77.0)
    return pool


def computed(stage: Stage) -> tuple[DevicePool, int | None]:
    """Return a pool with the KV of all TOKENS, and the token behind them."""
    pool = poisoned(stage)
    (result,) = Forward(stage, pool, NoPeers()).compute([Piece(TOKENS, 0, PAGES, sampling=GREEDY)])
    return pool, result.token


@pytest.mark.parametrize("prefix_pages", [0, 1, 3])
def test_a_suffix_lands_behind_its_prefix_and_touches_nothing_else(stage: Stage, prefix_pages: int) -> None:
    """Field fault F27."""
    whole, token = computed(stage)
    pool, start = poisoned(stage), prefix_pages * PAGE_TOKENS
    prefix = slots(PAGES)[:start]
    for mine, theirs in zip(layers_of(pool), layers_of(whole), strict=True):
        mine[prefix] = theirs[prefix]
    before = [layer.clone() for layer in layers_of(pool)]

    (result,) = Forward(stage, pool, NoPeers()).compute([Piece(TOKENS[start:], start, PAGES, sampling=GREEDY)])

    suffix = slots(PAGES)[start : len(TOKENS)]
    others = sorted(set(range(NUM_PAGES * PAGE_TOKENS)) - set(suffix))
    for old, mine, theirs in zip(before, layers_of(pool), layers_of(whole), strict=True):
        assert torch.equal(mine[others], old[others])
        torch.testing.assert_close(mine[suffix], theirs[suffix])
    assert result == Computed(token, is_restored=True)


class Layers:
    """Layers that arrive when they are waited for, and not before."""

    def __init__(self, source: DevicePool, target: DevicePool, where: list[int], fails_at: int | None) -> None:
        self.waits: list[int] = []
        self._source, self._target, self._where, self._fails_at = source, target, where, fails_at

    def wait(self, layer: int, timeout_s: float | None = None) -> None:
        self.waits.append(layer)
        if layer == self._fails_at:
            raise HiCacheError(f"layer {layer} will not arrive")
        for source, target in ((self._source.keys, self._target.keys), (self._source.values, self._target.values)):
            if source:
                target[layer][self._where] = source[layer][self._where]


class LayerByLayer:
    """A load that never ends as a whole: whoever waits for it, and not for its layers, waits for ever."""

    error: Exception | None = None

    def __init__(
        self, source: DevicePool, target: DevicePool, where: list[int], *, fails_at: int | None = None
    ) -> None:
        self.layers = Layers(source, target, where, fails_at)

    def done(self) -> bool:
        return False

    def wait(self, timeout_s: float | None = None) -> bool:
        raise AssertionError("the whole load was waited for")


def test_each_layer_waits_for_its_own_part_of_a_restore_alone(stage: Stage) -> None:
    whole, token = computed(stage)
    pool, start = poisoned(stage), 3 * PAGE_TOKENS
    load = LayerByLayer(whole, pool, slots(PAGES[:3]))

    (result,) = Forward(stage, pool, NoPeers()).compute([Piece(TOKENS[start:], start, PAGES, (load,), GREEDY)])

    assert load.layers.waits == list(range(len(stage.part.layers)))
    assert result == Computed(token, is_restored=True)


def test_a_restore_that_fails_ends_its_piece_and_no_other(stage: Stage) -> None:
    whole, token = computed(stage)
    pool, start = poisoned(stage), 2 * PAGE_TOKENS
    load = LayerByLayer(whole, pool, slots(PAGES[:2]), fails_at=2)
    healthy = Piece(TOKENS, 0, [1, 3, 5, 6, 8], sampling=GREEDY)

    failed, good = Forward(stage, pool, NoPeers()).compute(
        [Piece(TOKENS[start:], start, PAGES, (load,), GREEDY), healthy]
    )

    assert not failed.is_restored
    assert good == Computed(token, is_restored=True)


def test_a_piece_does_not_depend_on_its_batch(stage: Stage) -> None:
    alone, _ = computed(stage)
    pool = poisoned(stage)

    Forward(stage, pool, NoPeers()).compute(
        [Piece(prompt(2, 9), 0, [1, 3, 5]), Piece(TOKENS, 0, PAGES, sampling=GREEDY), Piece(prompt(3, 1), 0, [6])]
    )

    mine = slots(PAGES)[: len(TOKENS)]
    for batched, single in zip(layers_of(pool), layers_of(alone), strict=True):
        assert torch.equal(batched[mine], single[mine])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_an_8_bit_float_cannot_hold_becomes_its_largest_value(dtype: torch.dtype) -> None:
    rows = torch.zeros(4, 1, 3, dtype=torch.uint8).view(dtype)
    largest = torch.finfo(dtype).max

    store_rows(rows, torch.tensor([2]), torch.tensor([[[1e9, -1e9, 0.5]]]))

    assert rows_of(rows, torch.tensor([2, 1]), torch.float32).tolist() == [[[largest, -largest, 0.5]], [[0, 0, 0]]]
