"""Every case by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.cases.consensus_overhead import consensus_overhead
from benchmarks.cases.corruption import corruption
from benchmarks.cases.existence import file_exists
from benchmarks.cases.kernels import gather_scatter, host_relayout
from benchmarks.cases.pp_sync import pp_sync
from benchmarks.cases.radix_tree import radix_tree
from benchmarks.cases.restore import restore
from benchmarks.cases.servers import break_even, mooncake_transfer, redis_transfer, s3_transfer
from benchmarks.cases.serving import bench_serving
from benchmarks.cases.sglang_dynamic import sglang_dynamic
from benchmarks.cases.transfer import checksum_cost, file_read, file_write
from benchmarks.rows import Finding, Result, Row, Served
from benchmarks.runner import Settings


@dataclass(frozen=True, slots=True)
class Case:
    """One question and how to answer it.

    Attributes:
        description: one line for ``list``.
        run: measures; returns results of *kind* only.
        kind: what its CSV holds.
        servers: what it starts, backends or engines; such a case runs only where it is named.
    """

    description: str
    run: Callable[[Settings], Sequence[Result]]
    kind: type[Row | Finding | Served]
    servers: tuple[str, ...] = ()


CASES = {
    "file_write": Case("store 2 MiB and 256 KiB objects: ours, plain pwritev, peers", file_write, Row),
    "file_read": Case("verified reads of the same objects: ours, plain preadv, ours unverified, peers", file_read, Row),
    "file_exists": Case("ask for 1024 keys whether they are there: ours, os.stat, peers", file_exists, Row),
    "checksum_cost": Case("verified reads against the file backend alone", checksum_cost, Row),
    "corruption": Case("damaged objects: what a read returns, and whether a write heals", corruption, Finding),
    "gather_scatter": Case(
        "pages between a pool of per-layer tensors and page_unified pages: ours, one plain copy, SGLang",
        gather_scatter,
        Row,
    ),
    "host_relayout": Case(
        "pages between an engine's host pool and page_unified pages: ours, one plain copy, SGLang", host_relayout, Row
    ),
    "radix_tree": Case(
        "match, insert and evict prompts of 200,000 tokens and 100,000 pages: ours, SGLang's trees", radix_tree, Row
    ),
    "restore": Case(
        "a prompt fetched from L3 by the controller: ours, its client, the file backend alone", restore, Row
    ),
    "sglang_dynamic": Case(
        "a prompt through SGLang's own controller: its file backend, a bare plug-in, our adapter",
        sglang_dynamic,
        Row,
        ("sglang",),
    ),
    "consensus_overhead": Case(
        "the rank consensus checker, off and on: a decorated call, a scheduler's step on TP1 and TP2/PP2",
        consensus_overhead,
        Row,
    ),
    "pp_sync": Case(
        "a tick of controllers that stay in step, threads and processes, beside a scheduler's step", pp_sync, Row
    ),
    "redis_transfer": Case(
        "writes, verified and ranged reads on a real Redis: ours, raw pipelined sockets",
        redis_transfer,
        Row,
        ("redis",),
    ),
    "s3_transfer": Case(
        "writes, verified and ranged reads on a real SeaweedFS: ours, http.client, boto3", s3_transfer, Row, ("s3",)
    ),
    "mooncake_transfer": Case(
        "writes, verified and ranged reads on a real Mooncake: ours, the bare SDK",
        mooncake_transfer,
        Row,
        ("mooncake",),
    ),
    "break_even": Case(
        "a page of 2 MiB cut into 1, 4, 8, 32 objects, on every backend", break_even, Row, ("redis", "s3", "mooncake")
    ),
    "bench_serving": Case(
        "SGLang's serving benchmark against `hicache serve`, L3 off and on, before and after a restart",
        bench_serving,
        Served,
        ("sglang",),
    ),
}
