"""SGLang 0.5.23's radix trees on a CPU, with an allocator that only counts what is freed."""

from __future__ import annotations

from array import array

import torch
from sglang.srt.environ import envs
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from benchmarks.subjects.trees import Tree
from benchmarks.workload import Workload

Request = tuple["array[int]", object]


class CountingAllocator:
    """Takes back slots and remembers how many."""

    device = "cpu"

    def __init__(self) -> None:
        self.num_freed = 0

    def free(self, slots: torch.Tensor) -> None:
        self.num_freed += len(slots)

    def free_segment(self, slots: torch.Tensor, start_pos: int = 0) -> None:  # noqa: ARG002 - the interface
        self.num_freed += len(slots)

    def get_kvcache(self) -> None:
        return None


class SGLangTree(Tree):
    """RadixCache, or UnifiedRadixCache on one of its cores: ``python`` or ``rust``."""

    def __init__(self, core: str) -> None:
        self._core = core
        name = "RadixCache" if core == "classic" else "UnifiedRadixCache"
        self.calls = {
            "insert": f"{name}.match_prefix, insert",
            "match": f"{name}.match_prefix",
            "evict": f"{name}.evict",
        }

    def prepare(self, workload: Workload) -> None:
        server = ServerArgs(model_path="dummy", page_size=workload.page_tokens)
        set_global_server_args_for_scheduler(server)
        super().prepare(workload)

    def wipe(self) -> None:
        self._allocator = CountingAllocator()
        parameters = CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self._allocator,
            page_size=self._workload.page_tokens,
            tree_components=(ComponentType.FULL,),
        )
        if self._core == "classic":
            self._tree = RadixCache(parameters)
            return
        with envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.override(self._core):
            self._tree = UnifiedRadixCache(params=parameters)

    def _request(self, number: int, tokens: list[int]) -> Request:
        length = self._workload.prompt_tokens
        return array("q", tokens), torch.arange(number * length, (number + 1) * length)

    def _insert(self, request: Request) -> None:
        tokens, slots = request
        key = RadixKey(tokens)
        known = self._tree.match_prefix(MatchPrefixParams(key=key)).device_prefix_len
        self._tree.insert(InsertParams(key=key, value=slots, prev_prefix_len=known))

    def _match(self, request: Request) -> int:
        return int(self._tree.match_prefix(MatchPrefixParams(key=RadixKey(request[0]))).device_prefix_len)

    def _evict_all(self) -> None:
        step = self._workload.batch * self._workload.page_tokens
        freed = -1
        while freed != self._allocator.num_freed:
            freed = self._allocator.num_freed
            self._tree.evict(EvictParams(num_tokens=step))
