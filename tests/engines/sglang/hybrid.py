"""A rank of a hybrid model: attention over everything beside sliding windows or recurrent states, which have pools of their own."""

from __future__ import annotations

from dataclasses import replace

import torch
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.test.kits.unified_radix_cache import fixtures
from sglang.test.kits.unified_radix_cache.config import CacheConfig

from tests.engines.sglang.stack import Model, Stack, Storage

HYBRID = Model(layers=6, heads=2, head_dim=16)

_FULL_LAYERS = (1, 3)


class HybridStack(Stack):
    """A stack with one companion pool.

    Args:
        companion: ``SWA`` or ``MAMBA``.
        window: tokens of the sliding windows.
    """

    def __init__(self, storage: Storage, companion: ComponentType, window: int = 32) -> None:
        self._companion, self._window = companion, window
        super().__init__(HYBRID, storage, host_pages=48)

    def store_prompt(self, tokens: list[int], seed: int) -> list[str]:
        """Compute a prompt, with a pattern of *seed* in its KV and its companion, and store it."""
        self._insert(self.tree, self.allocator, self.requests, tokens)
        leaf = int(fixtures.match_prefix(self.tree, tokens).last_device_node)
        for tensor, slots in self._held(leaf):
            tensor[slots] = _pattern(tensor[slots], seed)
        return self.back_up(leaf)

    def wrong_parts(self, tokens: list[int], seed: int) -> list[str]:
        """Load a prompt that was fetched back to the device; return the parts whose bytes are not those of *seed*."""
        found = fixtures.match_prefix(self.tree, tokens)
        self._load_back_node(self.tree, found.best_match_node, req=self._make_req(self.requests))
        leaf = int(found.best_match_node)
        wrong = []
        for number, (tensor, slots) in enumerate(self._held(leaf)):
            got = tensor[slots]
            if not torch.equal(got.view(torch.uint8), _pattern(got, seed).view(torch.uint8)):
                wrong.append(f"part {number} of {tuple(got.shape)}")
        return wrong

    def _held(self, leaf: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return what a restore of the path to *leaf* has to bring: tensors, and the slots in them."""
        slots = self.tree.path_device_indices(leaf)
        pool = self.allocator.get_kvcache()
        full = getattr(pool, "full_kv_pool", pool)
        held = [(rows, slots) for rows in (*full.k_buffer, *full.v_buffer)]
        if self._companion is ComponentType.SWA:
            tail = self.allocator.full_to_swa_index_mapping[slots[-self._window :]]
            return held + [(rows, tail) for rows in (*pool.swa_kv_pool.k_buffer, *pool.swa_kv_pool.v_buffer)]
        state = fixtures.node_device_value(self.tree, leaf, ComponentType.MAMBA).reshape(-1)
        states = self.requests.mamba_pool.mamba_cache
        return held + [(layer, state) for part in (states.temporal, *states.conv) for layer in part]

    def _cache_config(self, slots: int) -> CacheConfig:
        config = replace(
            super()._cache_config(slots),
            components=(ComponentType.FULL, self._companion),
            full_attention_layer_ids=_FULL_LAYERS,
        )
        if self._companion is ComponentType.SWA:
            return replace(config, sliding_window_size=self._window)
        return replace(config, enable_mamba_extra_buffer=True, mamba_cache_size=60)


def _pattern(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Return random bytes of the form of *like*; equal forms and seeds have equal bytes."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (like.numel() * like.element_size(),), dtype=torch.uint8, generator=generator)
    return raw.view(like.dtype).view(like.shape)
