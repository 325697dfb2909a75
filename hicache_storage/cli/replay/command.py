"""`hicache replay`: how much of a request trace each tier would have had."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hicache_storage.cli import exit_codes
from hicache_storage.cli.foreign import open_store_of
from hicache_storage.cli.options import add_command, store_target
from hicache_storage.cli.output import progress
from hicache_storage.cli.replay import plot, server, show
from hicache_storage.cli.replay.arguments import add_arguments, check_numbers, replay_options, shipped_trace
from hicache_storage.engine_integration.replay import Replay, Trace
from hicache_storage.registry import open_store
from hicache_storage.store import ObjectStore

_EXAMPLES = """hicache replay
hicache replay --trace conversation_trace.jsonl --fleet tp4pp2,tp2pp1 --device-size 300ktokens --host-size 3Mtokens
hicache replay --instances 4 --device-size 200ktokens --host-size 400ktokens --store-size 20Mtokens --json
hicache replay --requests 40 --bytes --store file:///tmp/kv --fleet tp4pp2,tp2pp1 --host-size 2Mtokens
hicache replay --url http://127.0.0.1:30000 --trace recorded.jsonl --speed 2"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "replay",
        summary="replay a request trace through the tiers, without a model, or to a running server",
        description="Run a trace of requests through the real radix tree, policies and L3 client of one or several "
        "simulated instances that share a store. Shows what each tier would have had of the prompts, what was evicted, "
        "what was moved, and what became of every question to L3. With --url the requests are sent to a running server "
        "instead, which shows its hits by tier, its times, and whether its answers are those of the trace.",
        examples=_EXAMPLES,
    )
    add_arguments(parser)
    defaults = vars(parser.parse_args([]))
    parser.set_defaults(run=lambda args: run(args, defaults))


def run(args: argparse.Namespace, defaults: Mapping[str, object]) -> int:
    """Replay the trace and print what was found; CORRUPT if a page was served with other bytes than its own.

    Args:
        defaults: what each flag is where it is not given.
    """
    check_numbers(args)
    server.check(args, defaults)
    if args.url is not None:
        return server.run(args)
    options = replay_options(args)
    if args.plot is not None:
        plot.check(args.plot)
    trace = Trace(args.trace or shipped_trace(), most_requests=args.requests)
    with _backend(args) as backend, Replay(trace, options, backend=backend) as replay:
        for _ in progress(replay.run(), total=trace.summary.num_requests, label="replayed"):
            pass
        report = replay.report()
        if args.plot is not None:
            plot.draw(args.plot, replay.served, trace.path.name)
    if args.json:
        show.print_document(trace, options, report)
    else:
        show.print_report(trace, options, report)
    return exit_codes.CORRUPT if report.total.num_wrong else exit_codes.DONE


@contextmanager
def _backend(args: argparse.Namespace) -> Iterator[ObjectStore | None]:
    """Give the store for ``--bytes``, closed at the end: this process's memory, unless the flags name one."""
    if not args.bytes:
        yield None
        return
    is_named = args.hicache_storage_backend or args.hicache_storage_backend_extra_config
    store = open_store_of(store_target(args)) if is_named else open_store("memory")
    try:
        yield store
    finally:
        store.close()
