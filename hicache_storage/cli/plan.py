"""`hicache plan`: the grid that lets a fleet of topologies share pages, what it costs, what would change it."""

from __future__ import annotations

import argparse

from hicache_storage.cli import exit_codes
from hicache_storage.cli.options import add_command, add_json_argument
from hicache_storage.cli.output import human_nbytes, print_json, print_table
from hicache_storage.errors import ConfigError
from hicache_storage.layout import (
    GridPlan,
    KVShape,
    Member,
    Obstacle,
    Topology,
    advise_without,
    find_obstacles,
    plan_grid,
)

_EXAMPLES = """hicache plan --layers 60 --kv-heads 8 --fleet tp4pp2,tp2pp1
hicache plan --layers 61 --mla --head-dim 576 --fleet tp8pp1,tp1pp4
hicache plan --layers 60 --kv-heads 8 --fleet tp4pp2:31+29,tp2pp1 --readers tp8pp4"""

_SHOWN_RANKS = 16


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "plan",
        summary="compute the grid for a fleet of topologies",
        description="Compute the coarsest layer x head grid that every topology of a fleet can write, its objects per "
        "page and per rank and their sizes; say what forces it and what would change it.",
        examples=_EXAMPLES,
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
    """Print the plan, or what stands in its way; USAGE if the fleet cannot share."""
    shape = _shape(args)
    writers = _topologies(args.fleet, "--fleet")
    readers = _topologies(args.readers, "--readers") if args.readers else []
    obstacles = find_obstacles(shape, writers, readers)
    if obstacles:
        advice = advise_without(shape, writers, obstacles)
        _print_refusal(args, obstacles, advice)
        return exit_codes.USAGE
    plan = plan_grid(
        shape,
        writers,
        readers=readers,
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
        "obstacles": [_obstacle_document(obstacle) for obstacle in plan.obstacles],
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
        "copies": member.copies,
        "writing_tp_ranks": list(member.writing_tp_ranks),
    }


def _obstacle_document(obstacle: Obstacle) -> dict[str, object]:
    return {"topology": obstacle.topology.name, "reason": obstacle.reason, "advice": list(obstacle.advice)}


def _print_refusal(args: argparse.Namespace, obstacles: list[Obstacle], advice: str) -> None:
    """Print what there is to say of a fleet with topologies that cannot run the model: there is no grid."""
    if args.json:
        fields = ("layer_partition", "head_partition", "objects_per_page", "object_nbytes")
        document: dict[str, object] = dict.fromkeys(fields)
        listed = [_obstacle_document(obstacle) for obstacle in obstacles]
        page_nbytes = _shape(args).page_nbytes
        print_json(
            document
            | {"page_nbytes": page_nbytes, "shareable": False, "members": [], "obstacles": listed, "advice": [advice]}
        )
        return
    names = ", ".join(obstacle.topology.name for obstacle in obstacles)
    print(f"no grid: {names} cannot run this model")
    for obstacle in obstacles:
        print(f"\n{obstacle.reason}")
        for sentence in obstacle.advice:
            print(f"  {sentence}")
    print(f"\n{advice}")


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
    for member in plan.members:
        if member.copies > 1:
            print(f"\n{_election(plan, member)}")
    for sentence in plan.advice:
        print(f"\n{sentence}")
    print(f"\nflags: {_flags(plan)}")


def _writes(member: Member) -> str:
    if member.reads_only:
        return "reader only"
    return "yes" if member.can_write else "NO"


def _election(plan: GridPlan, member: Member) -> str:
    """Say which of the ranks that hold the same bytes write them."""
    what = "the same rows" if plan.shape.is_mla else "each KV head"
    held = f"{member.topology.name}: {member.copies} TP ranks of a stage hold {what}"
    ranks = member.writing_tp_ranks
    if not ranks:
        return f"{held}; none of them writes"
    one = len(ranks) == 1
    listed = ", ".join(map(str, ranks[:_SHOWN_RANKS])) + (f", ... {ranks[-1]}" if len(ranks) > _SHOWN_RANKS else "")
    rest = member.topology.tp - len(ranks)
    return f"{held}, one of them writes: TP rank{'' if one else 's'} {listed}; the other {rest} only read"


def _flags(plan: GridPlan) -> str:
    flags = f"--hicache-storage-layer-partition {plan.grid.layer_partition}"
    return flags if plan.shape.is_mla else f"--hicache-storage-head-partition {plan.grid.head_partition} {flags}"
