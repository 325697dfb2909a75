"""Process: compute the prompt's KV with the whole model and cut it into the writer topology's shards."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from hicache_storage.cli.demo.job import PrefillJob, PrefillResult
from hicache_storage.cli.demo.processes import child_main
from hicache_storage.cli.demo.ranks import Ranks
from hicache_storage.cli.demo.session import Session
from hicache_storage.cli.demo.stage import load_stage
from hicache_storage.kernels import DevicePool, gather_pages
from hicache_storage.layout import Shard, Topology

_WHOLE = Topology()


def prefill(job: PrefillJob, report: Callable[[str], None]) -> PrefillResult:
    """Leave every writing rank's host pages in the hand-over file."""
    ranks = Ranks(_WHOLE, tp_rank=0, pp_rank=0, rendezvous=-1, timeout_s=0.0)
    stage = load_stage(Path(job.folder), job.cache.dtype, _WHOLE, 0, 0, ranks.tensor_sum)
    report("prefill: model loaded")
    page_tokens = job.cache.page_tokens
    num_pages = -(-len(job.tokens) // page_tokens)
    session = Session(stage, ranks, torch.arange(num_pages), page_tokens)
    started = time.perf_counter()
    prefix_tokens = job.num_pages * page_tokens
    session.extend(job.tokens[:prefix_tokens], 0)
    session.extend(job.tokens[prefix_tokens:], prefix_tokens)
    computed = time.perf_counter()
    with mmap.mmap(job.handover, 0) as handover:
        cut(job, session.pool, session.page_ids[: job.num_pages], handover)
    return PrefillResult(computed - started, time.perf_counter() - computed)


def cut(job: PrefillJob, pool: DevicePool, page_ids: torch.Tensor, handover: mmap.mmap) -> None:
    """Gather each writing rank's layers and heads of *pool* into its region of *handover*."""
    writer = Topology.parse(job.writer)
    for region in job.regions:
        shard = writer.shard(job.cache.shape, tp_rank=region.tp_rank, pp_rank=region.pp_rank)
        layout = job.cache.layout(shard)
        host = torch.frombuffer(handover, dtype=torch.uint8, count=region.nbytes, offset=region.offset)
        pages = host.view(len(page_ids), layout.page_nbytes)
        gather_pages(_share(pool, shard), page_ids, pages, group_heads=layout.group_heads)
        del pages, host  # the mapping cannot be closed while a tensor shows its memory


def _share(pool: DevicePool, shard: Shard) -> DevicePool:
    """Return what the rank that holds *shard* would have in its own pool, without copying."""
    layers = slice(shard.layers.start, shard.layers.stop)
    heads = slice(shard.heads.start, shard.heads.stop)
    keys, values = (tuple(tensor[:, heads] for tensor in side[layers]) for side in (pool.keys, pool.values))
    return DevicePool.of_layers(keys, values, pool.page_tokens)


if __name__ == "__main__":
    sys.exit(child_main(PrefillJob, prefill))
