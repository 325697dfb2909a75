"""The `hicache` command line: one subcommand per file, one exit status per kind of end."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from hicache_storage.cli import doctor, exit_codes, explain, ls, plan, stat, verify
from hicache_storage.cli.demo import command as demo
from hicache_storage.cli.output import say
from hicache_storage.errors import HiCacheError

_COMMANDS = (demo, plan, ls, stat, explain, verify, doctor)
_EXIT_CODES = "exit status: 0 done, 1 missing, 2 usage or configuration, 3 store unreachable, 4 corrupt data"
_INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="hicache",
        description="L3 storage for the KV cache of LLM servers: see, check and try it.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"hicache {version('hicache-storage')}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log more to stderr; twice for debugging")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    for subparser in commands.choices.values():
        subparser.epilog = f"{subparser.epilog}\n\n{_EXIT_CODES}" if subparser.epilog else _EXIT_CODES
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our pipe has seen enough; the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.DONE
    except KeyboardInterrupt:
        say("hicache: interrupted")
        return _INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    args = build_parser().parse_args(argv)
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(args.verbose, 2)]
    logging.basicConfig(stream=sys.stderr, level=level, format="%(levelname)s %(name)s %(message)s")
    try:
        status: int = args.run(args)
    except HiCacheError as error:
        say(f"hicache: {type(error).__name__}: {error}")
        return exit_codes.of_error(error)
    return status


if __name__ == "__main__":
    sys.exit(main())
