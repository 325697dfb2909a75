"""One rank of a stock SGLang deployment without its model: pools, UnifiedRadixCache, HybridCacheController, storage backend.

KV is a pattern of random bytes over all layers and heads; each rank holds its own part of it, as tensor and pipeline
parallelism cut it. So what any rank reads back can be compared with what the whole model's KV is at those places.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from unittest import TestCase, mock

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.test.kits.unified_radix_cache import fixtures
from sglang.test.kits.unified_radix_cache.config import CacheConfig
from sglang.test.kits.unified_radix_cache.storage import UnifiedRadixCacheStorageFixtures

IO_BACKENDS = {"layer_first": "direct", "page_first": "kernel", "page_first_direct": "direct", "page_head": "kernel"}
"""Host layout -> the way of copying that SGLang pairs with it."""

DEADLINE_S = 60.0

_MODEL_NAME = "demo/model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The KV geometry of a whole model; ``latent`` > 0 makes it MLA, of rows of that many elements."""

    layers: int = 4
    heads: int = 4
    head_dim: int = 16
    latent: int = 0
    page_tokens: int = 16

    def kv(self, tokens: int, seed: int = 1) -> torch.Tensor:
        """Return ``[layers, components, tokens, heads, width]`` in bfloat16 made of random bytes, NaNs among them."""
        row = (1, tokens, 1, self.latent) if self.latent else (2, tokens, self.heads, self.head_dim)
        generator = torch.Generator().manual_seed(seed)
        pattern = torch.randint(-(1 << 15), 1 << 15, (self.layers, *row), dtype=torch.int16, generator=generator)
        return pattern.view(torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank stands."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    tp_group: torch.distributed.ProcessGroup | None = None
    pp_group: torch.distributed.ProcessGroup | None = None

    def layers(self, model: Model) -> range:
        """Return the stage's layers."""
        each = model.layers // self.pp_size
        return range(self.pp_rank * each, (self.pp_rank + 1) * each)

    def part(self, model: Model, kv: torch.Tensor) -> torch.Tensor:
        """Return what this rank holds of the whole model's *kv*."""
        layers = self.layers(model)
        mine = kv[layers.start : layers.stop]
        if model.latent:
            return mine
        each = model.heads // self.tp_size
        return mine[:, :, :, self.tp_rank * each : (self.tp_rank + 1) * each]


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What stands on SGLang's command line; without a backend there is no store yet."""

    backend: str | None
    extra: Mapping[str, object]
    layout: str = "page_first"

    @property
    def extra_json(self) -> str:
        return json.dumps({"prefetch_threshold": 1, **self.extra})


class Stack(UnifiedRadixCacheStorageFixtures, TestCase):  # type: ignore[misc] # SGLang has no types
    """A rank's tree, controller and pools, with the storage backend attached; `close` ends its threads.

    Args:
        host_pages: room in the host pool and the device pool.
    """

    __test__ = False

    def __init__(self, model: Model, storage: Storage, place: Place | None = None, host_pages: int = 40) -> None:
        super().__init__()
        self.model, self.place, self.storage = model, place or Place(), storage
        self.cfg = self._cache_config(model.page_tokens * host_pages)
        with ExitStack() as undo:
            undo.enter_context(mock.patch.object(fixtures, "MHATokenToKVPool", self._device_pool))
            undo.enter_context(mock.patch.object(fixtures, "CacheInitParams", self._init_params()))
            self.tree, self.allocator, self.requests = fixtures.build_fixture(self.cfg)
        self._init_tiers()

    @property
    def controller(self) -> HiCacheController:
        return self.tree.cache_controller

    @property
    def store(self) -> object:
        """The storage backend that the factory made."""
        return self.controller.storage_backend

    def tokens(self, pages: int, start: int = 1) -> list[int]:
        """Return a prompt of *pages* pages."""
        found: list[int] = self._make_seq(start, pages)
        return found

    def compute(self, tokens: list[int], kv: torch.Tensor) -> int:
        """Put a prompt with the model's *kv* into the tree, as its prefill does; return its node."""
        self._insert(self.tree, self.allocator, self.requests, tokens)
        leaf = fixtures.match_prefix(self.tree, tokens).last_device_node
        slots = self.tree.path_device_indices(leaf)
        for layer, values in zip(self._device_layers(), self.place.part(self.model, kv), strict=True):
            for rows, component in zip(layer, values, strict=True):
                rows[slots] = component
        return int(leaf)

    def back_up(self, leaf: int) -> list[str]:
        """Copy the path to *leaf* to the host pool and to the store; return its page hashes once that is done."""
        self._backup_node(self.tree, leaf)
        self._write_path_to_l3(self.tree, leaf)
        self._flush_l3_backups(self.tree, timeout=DEADLINE_S)
        return [str(page_hash) for page_hash in self._all_page_hashes(self.tree, leaf)]

    def prefetch(self, tokens: list[int], name: str = "request") -> int:
        """Fetch a prompt from the store into the host pool; return how many of its tokens came."""
        request = CacheRequestHandle(name, 0)
        self.tree.prefetch_from_storage(request, self.tree.root_node_handle(), array("q", tokens), None, None)
        self._run_prefetch_to_completion(self.tree, request, timeout=DEADLINE_S)
        return int(self.tree.pop_prefetch_loaded_tokens(request))

    def load_back(self, tokens: list[int]) -> torch.Tensor:
        """Copy the prompt's host pages to the device; return its KV there, ``[layers, components, tokens, ...]``."""
        found = fixtures.match_prefix(self.tree, tokens)
        self._load_back_node(self.tree, found.best_match_node)
        slots = self.tree.path_device_indices(found.best_match_node)
        return torch.stack([torch.stack([rows[slots] for rows in layer]) for layer in self._device_layers()])

    def holds(self, tokens: list[int], kv: torch.Tensor) -> bool:
        """Return whether the prompt's host pages, loaded back, are this rank's part of *kv* to the byte."""
        wanted, got = self.place.part(self.model, kv).contiguous(), self.load_back(tokens).contiguous()
        return torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))

    def restores(self, tokens: list[int], kv: torch.Tensor) -> bool:
        """Return whether the whole prompt comes from the store, and right."""
        return self.prefetch(tokens) == len(tokens) and self.holds(tokens, kv)

    def attach(self, storage: Storage) -> tuple[bool, str]:
        """Attach a store to the running tree; return what its control call answers."""
        with self._placed():
            done, message = self.tree.attach_storage_backend(
                storage_backend=storage.backend,
                storage_backend_extra_config_json=storage.extra_json,
                served_model_name=_MODEL_NAME,
                hicache_storage_prefetch_policy="wait_complete",
            )
        self._lift_prefetch_limit()
        return bool(done), str(message)

    def detach(self) -> tuple[bool, str]:
        """Detach the store from the running tree; return what its control call answers."""
        done, message = self.tree.detach_storage_backend()
        return bool(done), str(message)

    def threads_are_alive(self) -> bool:
        """Return whether every storage thread of the controller runs."""
        names = ("prefetch_thread", "prefetch_io_aux_thread", "prefetch_sync_thread", "backup_thread")
        return all(getattr(self.controller, name).is_alive() for name in names)

    def close(self) -> None:
        """End the threads and give the pools back."""
        if self.controller.enable_storage:
            self.detach()
        self.doCleanups()

    def _cache_config(self, slots: int) -> CacheConfig:
        model, layers = self.model, len(self.place.layers(self.model))
        return CacheConfig(
            page_size=model.page_tokens,
            components=(ComponentType.FULL,),
            num_layers=layers,
            full_attention_layer_ids=tuple(range(layers)),
            head_num=max(1, model.heads // self.place.tp_size),
            head_dim=model.head_dim,
            kv_size=slots,
            max_context_len=slots,
        )

    def _init_tiers(self) -> None:
        storage = self.storage
        args = ServerArgs(
            model_path="dummy",
            served_model_name=_MODEL_NAME,
            page_size=self.model.page_tokens,
            hicache_io_backend=IO_BACKENDS[storage.layout],
            hicache_mem_layout=storage.layout,
            hicache_write_policy="write_through",
            hicache_storage_backend=storage.backend,
            hicache_storage_backend_extra_config=storage.extra_json if storage.backend else None,
            hicache_storage_prefetch_policy="wait_complete",
        )
        set_global_server_args_for_scheduler(args)
        with self._placed():
            self.tree.init_hicache(args, self.tree.cache_init_params)
        self.addCleanup(self.tree.release_host_resources)
        fixtures.drop_hicache_atexit_pin(self.tree)
        self.tree.write_through_threshold = 1 << 30
        self.tree.load_back_threshold = 0
        self._lift_prefetch_limit()

    def _lift_prefetch_limit(self) -> None:
        """Let one prefetch fill the host pool, which these pools are too small to have room beside."""
        if self.controller.enable_storage:
            self.controller.prefetch_capacity_limit = self.controller.mem_pool_host.size

    def _placed(self) -> AbstractContextManager[object]:
        place = self.place
        ranks = dict.fromkeys(("tp_rank", "attn_tp_rank", "moe_tp_rank"), place.tp_rank)
        sizes = dict.fromkeys(("tp_size", "attn_tp_size", "moe_tp_size"), place.tp_size)
        placed: AbstractContextManager[object] = get_parallel().override(
            pp_rank=place.pp_rank, pp_size=place.pp_size, **ranks, **sizes
        )
        return placed

    def _init_params(self) -> partial[CacheInitParams]:
        place = self.place
        return partial(
            CacheInitParams,
            tp_cache_group=place.tp_group,
            pp_cache_group=place.pp_group,
            pp_rank=place.pp_rank,
            pp_size=place.pp_size,
        )

    def _device_pool(self, **options: object) -> MHATokenToKVPool | MLATokenToKVPool:
        layers = self.place.layers(self.model)
        options |= {"start_layer": layers.start, "end_layer": layers.stop}
        if not self.model.latent:
            return MHATokenToKVPool(**options)
        rope = self.model.latent // 9
        kept = {name: options[name] for name in options if name not in ("head_num", "head_dim")}
        return MLATokenToKVPool(kv_lora_rank=self.model.latent - rope, qk_rope_head_dim=rope, **kept)

    def _device_layers(self) -> list[list[torch.Tensor]]:
        pool = self.allocator.get_kvcache()
        if self.model.latent:
            return [[rows] for rows in pool.kv_buffer]
        return [list(pair) for pair in zip(pool.k_buffer, pool.v_buffer, strict=True)]
