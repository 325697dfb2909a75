"""`hicache ls`: what a store holds, by namespace, by page or by object."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import islice

from hicache_storage.cli import exit_codes
from hicache_storage.cli.options import add_command, add_json_argument, add_store_arguments, open_to_look
from hicache_storage.cli.output import human_nbytes, human_time, print_json, print_table, progress, say
from hicache_storage.engine_integration.page_store import digest_of_descriptor
from hicache_storage.engine_integration.page_store.inspect import NamespaceUsage, describe, usage_by_namespace
from hicache_storage.errors import LayoutError
from hicache_storage.layout import ObjectKey
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectInfo

_EXAMPLES = """hicache ls --store file:///mnt/kv
hicache ls --store file:///mnt/kv --objects --limit 20
hicache ls 3f5a --store redis://localhost --json"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "ls",
        summary="list namespaces or objects",
        description="List the namespaces of a store with what each one stands for, or, with a PREFIX or --objects, "
        "the objects themselves. Exit status 1 if there is nothing to list.",
        examples=_EXAMPLES,
    )
    parser.add_argument("prefix", nargs="?", metavar="PREFIX", help="only objects whose key starts with this")
    parser.add_argument("--objects", action="store_true", help="list objects instead of namespaces")
    parser.add_argument(
        "--namespace", metavar="DIGEST", help="only objects of this namespace: ukv1-... or its beginning"
    )
    parser.add_argument("--limit", type=_limit, metavar="N", help="list at most N (default: all)")
    add_store_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List; MISSING if there is nothing."""
    with open_to_look(args) as store:
        by_object = args.objects or args.prefix or args.namespace
        found = _list_objects(args, store) if by_object else _list_namespaces(args, store)
    if not found:
        say(f"hicache: {_nothing(args)}")
    return exit_codes.DONE if found else exit_codes.MISSING


def _nothing(args: argparse.Namespace) -> str:
    """Say what there is nothing of."""
    chosen = [f"whose key starts with {args.prefix!r}"] if args.prefix else []
    chosen += [f"of a namespace {args.namespace!r}"] if args.namespace else []
    return f"no object {' and '.join(chosen)}" if chosen else "the store is empty"


def _limit(text: str) -> int:
    limit = int(text)
    if limit < 1:
        raise argparse.ArgumentTypeError(f"{limit} is not at least 1")
    return limit


def _list_objects(args: argparse.Namespace, store: ObjectStore) -> bool:
    """Print the objects; say whether there are any."""
    infos: Iterable[ObjectInfo] = store.list_keys(args.prefix or "")
    if args.namespace:
        infos = (info for info in infos if _namespace_of(info.key).startswith(args.namespace))
    found = sorted(islice(infos, args.limit), key=lambda info: info.key)
    if args.json:
        print_json({"objects": [{"key": i.key, "nbytes": i.nbytes, "modified_s": i.modified_s} for i in found]})
    else:
        rows = ([info.key, info.nbytes, human_time(info.modified_s)] for info in found)
        print_table(["key", "bytes", "modified"], rows)
    return bool(found)


def _namespace_of(key: str) -> str:
    digest = digest_of_descriptor(key)
    if digest is not None:
        return digest
    try:
        return ObjectKey.parse(key).namespace_digest
    except LayoutError:
        return ""


def _list_namespaces(args: argparse.Namespace, store: ObjectStore) -> bool:
    """Print the namespaces, the largest first; say whether there are any."""
    usage = usage_by_namespace(progress(store.list_keys(""), total=None, label="objects"))
    largest = sorted(usage.values(), key=lambda entry: -entry.nbytes)
    rows = [_row(store, entry) for entry in largest[: args.limit]]
    if args.json:
        print_json({"namespaces": rows})
    else:
        print_table(
            ["namespace", "model", "dtype", "page", "grid", "pages", "objects", "size"],
            [_cells(row) for row in rows],
        )
    return bool(rows)


def _row(store: ObjectStore, entry: NamespaceUsage) -> dict[str, object]:
    descriptor = describe(store, entry.digest) if entry.digest else None
    return {
        "digest": entry.digest,
        "fields": descriptor.fields if descriptor is not None else None,
        "pages": len(entry.page_hashes),
        "objects": entry.objects,
        "nbytes": entry.nbytes,
    }


def _cells(row: dict[str, object]) -> list[object]:
    fields = row["fields"]
    counts = [row["pages"], row["objects"], human_nbytes(float(str(row["nbytes"])))]
    if not row["digest"]:
        return ["(foreign)", "not this package's", "", "", "", *counts]
    if not isinstance(fields, dict):
        return [row["digest"], "(no description)", "", "", "", *counts]
    model, dtype, page, layers, heads = (
        fields.get(name, "?") for name in ("model_id", "dtype", "page_size", "layer_partition", "head_group")
    )
    return [row["digest"], model, dtype, page, f"{layers}x{heads}", *counts]
