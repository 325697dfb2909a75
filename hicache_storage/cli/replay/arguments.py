"""The flags of `hicache replay`, and the simulated deployment that they describe."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from hicache_storage.cli.options import add_json_argument, add_option_flag, add_store_arguments
from hicache_storage.cli.replay import server
from hicache_storage.config import from_mapping, resolve
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.replay import KEY_SCHEMES, ReplayOptions, TierSize
from hicache_storage.errors import ConfigError
from hicache_storage.layout import KVShape, Topology

_SIZE = "TOKENS|BYTES"
_MEANINGLESS = {"host_memory_fraction"}
"""Tier options that mean nothing in a simulation."""


def shipped_trace() -> Path:
    """Return the slice of a trace that comes with the package."""
    return Path(str(files(__package__ or "") / "conversation_slice.jsonl"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every flag."""
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="requests as JSON lines, see docs/replay.md (default: a slice of Mooncake's conversation trace)",
    )
    parser.add_argument("--requests", type=int, metavar="N", help="replay only the first N")
    server.add_arguments(parser)
    add_json_argument(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the hit rate by tier (needs matplotlib)")
    parser.add_argument(
        "--check-every", type=int, default=0, metavar="N", help="count all books every N requests, not only at the end"
    )
    _add_deployment(parser)
    _add_shape(parser)
    _add_tiers(parser)
    parser.add_argument(
        "--bytes",
        action="store_true",
        help="move coded KV through a real store, this process's memory unless --store names one, and judge every page "
        "that is served (default: page names only)",
    )
    add_store_arguments(parser)


def _add_deployment(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("deployment")
    group.add_argument("--instances", type=int, metavar="N", help="servers that take requests in turn (default: one)")
    group.add_argument(
        "--fleet", default="tp1pp1", metavar="TOPOLOGIES", help="their topologies, in turn (default: %(default)s)"
    )
    group.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="requests that each instance has at a time (default: one after another; without limit with --url)",
    )
    for tier, what in {
        "device": "each instance's device memory, over its ranks",
        "host": "each instance's host memory, over its ranks; --hicache-size is for each rank",
        "store": "the store that all share",
    }.items():
        group.add_argument(f"--{tier}-size", metavar=_SIZE, help=f"{what}: 300ktokens or 64GiB (default: unbounded)")
    group.add_argument(
        "--hicache-storage-key-scheme",
        choices=KEY_SCHEMES,
        default="unified",
        help="rank-suffix: instances of different topologies share nothing (default: %(default)s)",
    )
    group.add_argument(
        "--store-tokens-per-s",
        type=float,
        metavar="N",
        help="simulated speed of L3 reads, for --fetch-or-recompute (default: they take no time)",
    )


def _add_shape(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "KV shape", "what a page weighs; with --bytes the defaults in parentheses are small"
    )
    group.add_argument("--page-size", type=int, default=64, metavar="N", help="tokens of a page (default: %(default)s)")
    group.add_argument("--layers", type=int, metavar="N", help="layers of the model (32; 8)")
    group.add_argument(
        "--kv-heads", type=int, default=8, metavar="N", help="KV heads of the model (default: %(default)s)"
    )
    group.add_argument("--mla", action="store_true", help="the model has MLA: one latent row, no KV heads")
    group.add_argument("--head-dim", type=int, metavar="N", help="elements of a head's row (128, MLA 576; 1)")
    group.add_argument("--kv-cache-dtype", metavar="DTYPE", help="logical KV dtype (bfloat16; uint8)")


def _add_tiers(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each of `TierOptions`, under its own name and those that engines use."""
    group = parser.add_argument_group("tier options")
    for field in dataclasses.fields(TierOptions):
        if field.name in _MEANINGLESS:
            continue
        names = [*field.metadata["aliases"], field.name]
        add_option_flag(group, field, names, deniable=True)


def replay_options(args: argparse.Namespace) -> ReplayOptions:
    """Return the deployment that the flags describe.

    Raises:
        ConfigError: a value is wrong, or flags contradict each other.
        LayoutError: the topologies cannot share, or cannot run the model.
    """
    _check(args)
    sizes = {tier: getattr(args, f"{tier}_size") for tier in ("device", "host", "store")}
    device, host, store = (None if text is None else TierSize.parse(text) for text in sizes.values())
    return ReplayOptions(
        shape=_shape(args),
        topologies=_topologies(args),
        tiers=_tier_options(args),
        device=device,
        host=host,
        store=store,
        key_scheme=args.hicache_storage_key_scheme,
        store_tokens_per_s=args.store_tokens_per_s,
        concurrency=args.concurrency or 1,
        check_every=args.check_every,
    )


def check_numbers(args: argparse.Namespace) -> None:
    """Raise `ConfigError` where a number is too small."""
    for name, least in {"requests": 1, "instances": 1, "concurrency": 1, "check_every": 0, "page_size": 1}.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: expected at least {least}")


def _check(args: argparse.Namespace) -> None:
    if args.store_tokens_per_s is not None and not 0 < args.store_tokens_per_s < float("inf"):
        raise ConfigError(f"--store-tokens-per-s {args.store_tokens_per_s}: expected a number above 0")
    named_store = args.hicache_storage_backend or args.hicache_storage_backend_extra_config
    if named_store and not args.bytes:
        raise ConfigError("a store needs --bytes: without bytes only the names of pages are kept, in this process")
    if args.bytes and args.store_size is not None:
        raise ConfigError("--store-size is for a replay without --bytes; a real store has a capacity of its own")
    if args.bytes and args.store_tokens_per_s is not None:
        raise ConfigError("--store-tokens-per-s is for a replay without --bytes; a real store takes the time it takes")


def _shape(args: argparse.Namespace) -> KVShape:
    """Return the KV's shape: by default a model's with 8 KV heads, or one of few bytes where they really move."""
    layers, head_dim, dtype = (8, 1, "uint8") if args.bytes else (32, 576 if args.mla else 128, "bfloat16")
    layers = layers if args.layers is None else args.layers
    head_dim = head_dim if args.head_dim is None else args.head_dim
    dtype = args.kv_cache_dtype or dtype
    if args.mla:
        return KVShape.mla(num_layers=layers, latent_dim=head_dim, dtype=dtype, page_tokens=args.page_size)
    if args.kv_heads < 1:
        raise ConfigError(f"--kv-heads {args.kv_heads}: expected at least 1; a model with MLA has --mla")
    return KVShape.mha(
        num_layers=layers, num_kv_heads=args.kv_heads, head_dim=head_dim, dtype=dtype, page_tokens=args.page_size
    )


def _topologies(args: argparse.Namespace) -> Sequence[Topology]:
    names = [name.strip() for name in args.fleet.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--fleet {args.fleet!r}: expected comma-separated topologies such as tp4pp2,tp2pp1")
    count = args.instances or len(names)
    if count < len(names):
        raise ConfigError(f"--instances {count}, but --fleet names {len(names)} topologies")
    return [Topology.parse(names[index % len(names)]) for index in range(count)]


def _tier_options(args: argparse.Namespace) -> TierOptions:
    names = [field.name for field in dataclasses.fields(TierOptions) if field.name not in _MEANINGLESS]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    options, _ = resolve(TierOptions, "tier", [from_mapping(given, "the command line")], environ={})
    return options
