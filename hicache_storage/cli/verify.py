"""`hicache verify`: read objects in whole and check every byte against its trailer."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

from hicache_storage.cli import exit_codes
from hicache_storage.cli.foreign import open_store_of
from hicache_storage.cli.options import add_command, add_json_argument, add_store_arguments, open_to_look, store_target
from hicache_storage.cli.output import counted, human_nbytes, print_json, print_table, progress
from hicache_storage.engine_integration.page_store.inspect import Health, Verdict, quarantine, verify_objects
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectInfo

_EXAMPLES = """hicache verify --store file:///mnt/kv
hicache verify --store file:///mnt/kv --prefix 3f5a --quarantine"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "verify",
        summary="check every byte of objects",
        description="Read objects in whole and check them against their trailers and names. Exit status 4 if one is "
        "corrupt, 1 if a named one is missing.",
        examples=_EXAMPLES,
    )
    parser.add_argument("keys", nargs="*", metavar="KEY", help="objects to check (default: all)")
    parser.add_argument("--prefix", default="", help="without KEY: only objects whose key starts with this")
    parser.add_argument("--quarantine", action="store_true", help="take corrupt objects out of use")
    add_store_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check; CORRUPT if any object is, MISSING if a named one is not there."""
    absent: list[Verdict] = []
    with open_to_look(args) as store:
        infos = list(_named(store, args.keys, absent) if args.keys else store.list_keys(args.prefix))
        checked = progress(verify_objects(store, infos), total=len(infos), label="verified")
        verdicts = [verdict for verdict in checked if verdict.health is not Health.MISSING or args.keys]
    bad = [verdict for verdict in verdicts if verdict.health is Health.CORRUPT]
    removed = _take_out(args, bad) if args.quarantine and bad else set()
    _print(args, verdicts + absent, removed)
    if bad:
        return exit_codes.CORRUPT
    missing = absent or any(verdict.health is Health.MISSING for verdict in verdicts)
    return exit_codes.MISSING if missing else exit_codes.DONE


def _take_out(args: argparse.Namespace, bad: list[Verdict]) -> set[str]:
    """Take the corrupt objects out of use, as far as that works; return their keys."""
    # The store was open only to look: one that is not there must not be made before it is known to be there.
    with open_store_of(store_target(args)) as store:
        return {verdict.key for verdict in bad if quarantine(store, verdict)}


def _named(store: ObjectStore, keys: Iterable[str], absent: list[Verdict]) -> Iterable[ObjectInfo]:
    for key in keys:
        info = store.stat(key)
        if info is None:
            absent.append(Verdict(key, Health.MISSING, 0, "not in this store"))
        else:
            yield info


def _print(args: argparse.Namespace, verdicts: list[Verdict], removed: set[str]) -> None:
    counts = Counter(verdict.health for verdict in verdicts)
    nbytes = sum(verdict.nbytes for verdict in verdicts)
    problems = [verdict for verdict in verdicts if verdict.health is not Health.INTACT]
    if args.json:
        print_json(
            {
                "objects": len(verdicts),
                "nbytes": nbytes,
                **{health.value: counts[health] for health in Health},
                "problems": [
                    {"key": v.key, "health": v.health.value, "reason": v.reason, "quarantined": v.key in removed}
                    for v in problems
                ],
            }
        )
        return
    if problems:
        rows = ([v.health.value, v.key, v.reason, "quarantined" if v.key in removed else ""] for v in problems)
        print_table(["health", "key", "reason", ""], rows)
        print()
    listing = ", ".join(f"{counts[health]} {health.value}" for health in Health if counts[health]) or "nothing there"
    print(f"{counted(len(verdicts), 'object')}, {human_nbytes(nbytes)}: {listing}")
