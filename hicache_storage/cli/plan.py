"""`hicache plan`: the grid that lets a fleet of topologies share pages, what it costs, what would change it."""

from __future__ import annotations

import argparse

from hicache_storage.cli import exit_codes
from hicache_storage.cli.options import add_json_argument
from hicache_storage.cli.output import human_nbytes, print_json, print_table
from hicache_storage.errors import ConfigError
from hicache_storage.layout import GridPlan, KVShape, Member, Topology, plan_grid

_EXAMPLE = """example:
  hicache plan --layers 60 --kv-heads 8 --fleet tp4pp2,tp2pp1
  hicache plan --layers 61 --mla --head-dim 576 --fleet tp8pp1,tp1pp4
  hicache plan --layers 60 --kv-heads 8 --fleet tp4pp2:31+29,tp2pp1 --readers tp8pp4"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = commands.add_parser(
        "plan",
        help="compute the grid for a fleet of topologies",
        description="Compute the coarsest layer x head grid that every topology of a fleet can write, its objects per "
        "page and per rank and their sizes; say what forces it and what would change it.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--layers", type=int, required=True, help="layers of the model")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--kv-heads", type=int, help="KV heads of the model, over all TP ranks")
    kind.add_argument("--mla", action="store_true", help="the model has MLA: one latent row, no KV heads")
    parser.add_argument("--head-dim", type=int, help="elements of a head's row (default 128; for --mla 576)")
    parser.add_argument("--kv-cache-dtype", default="bfloat16", help="logical KV dtype (default bfloat16)")
    parser.add_argument("--page-size", type=int, default=64, help="tokens of a page (default 64)")
    parser.add_argument(
        "--fleet",
        required=True,
        metavar="TOPOLOGIES",
        help="comma-separated topologies that read and write: tp4pp2, or tp4pp2:31+29 with the layers of each stage",
    )
    parser.add_argument("--readers", default="", metavar="TOPOLOGIES", help="topologies that only read")
    parser.add_argument("--hicache-storage-layer-partition", type=int, metavar="N", help="fix the layers of a chunk")
    parser.add_argument("--hicache-storage-head-partition", type=int, metavar="N", help="fix the KV heads of a chunk")
    add_json_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan; USAGE if a topology of the fleet cannot write it."""
    plan = plan_grid(
        _shape(args),
        _topologies(args.fleet, "--fleet"),
        readers=_topologies(args.readers, "--readers") if args.readers else [],
        layer_partition=args.hicache_storage_layer_partition,
        head_partition=args.hicache_storage_head_partition,
    )
    if args.json:
        print_json(_document(plan))
    else:
        _print(plan)
    return exit_codes.DONE if plan.shareable else exit_codes.USAGE


def _shape(args: argparse.Namespace) -> KVShape:
    if args.mla:
        return KVShape.mla(
            num_layers=args.layers,
            latent_dim=576 if args.head_dim is None else args.head_dim,
            dtype=args.kv_cache_dtype,
            page_tokens=args.page_size,
        )
    if args.kv_heads < 1:
        raise ConfigError(f"--kv-heads {args.kv_heads}: expected at least 1; a model with MLA has --mla")
    return KVShape.mha(
        num_layers=args.layers,
        num_kv_heads=args.kv_heads,
        head_dim=128 if args.head_dim is None else args.head_dim,
        dtype=args.kv_cache_dtype,
        page_tokens=args.page_size,
    )


def _topologies(text: str, flag: str) -> list[Topology]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"{flag} {text!r}: expected comma-separated topologies such as tp4pp2,tp2pp1")
    return [Topology.parse(name) for name in names]


def _document(plan: GridPlan) -> dict[str, object]:
    return {
        "layer_partition": plan.grid.layer_partition,
        "head_partition": plan.grid.head_partition,
        "objects_per_page": plan.objects_per_page,
        "object_nbytes": plan.object_nbytes,
        "page_nbytes": plan.shape.page_nbytes,
        "shareable": plan.shareable,
        "members": [_member_document(member) for member in plan.members],
        "advice": list(plan.advice),
    }


def _member_document(member: Member) -> dict[str, object]:
    fewest, most = member.objects_per_rank
    return {
        "topology": member.topology.name,
        "objects_per_rank": most,
        "fewest_objects_per_rank": fewest,
        "reads_only": member.reads_only,
        "can_write": member.can_write,
        "why_not": member.misfit,
        "reads_whole_objects": member.whole_objects,
    }


def _print(plan: GridPlan) -> None:
    heads = "MLA, no head axis" if plan.shape.is_mla else f"{plan.grid.head_partition} KV heads"
    print(f"grid               {plan.grid.layer_partition} layers x {heads}")
    print(f"objects per page   {plan.objects_per_page}")
    print(f"object size        {human_nbytes(plan.object_nbytes)} ({plan.object_nbytes} bytes, trailer included)")
    print(f"page               {plan.shape.page_tokens} tokens, {human_nbytes(plan.shape.page_nbytes)} over all ranks")
    print()
    rows = []
    for member in plan.members:
        fewest, most = member.objects_per_rank
        counts = str(most) if fewest == most else f"{fewest}-{most}"
        reads = "whole objects" if member.whole_objects else "ranges of objects"
        rows.append([member.topology.name, counts, _writes(member), reads])
    print_table(["topology", "objects per rank", "writes", "reads"], rows)
    for sentence in plan.advice:
        print(f"\n{sentence}")
    print(f"\nflags: {_flags(plan)}")


def _writes(member: Member) -> str:
    if member.reads_only:
        return "reader only"
    return "yes" if member.can_write else "NO"


def _flags(plan: GridPlan) -> str:
    flags = f"--hicache-storage-layer-partition {plan.grid.layer_partition}"
    return flags if plan.shape.is_mla else f"--hicache-storage-head-partition {plan.grid.head_partition} {flags}"
