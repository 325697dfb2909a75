"""What `hicache` does: one subcommand per file, one exit status per kind of end."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version

from hicache_storage.cli import consensus_diff, doctor, exit_codes, explain, ls, plan, stat, verify
from hicache_storage.cli.demo import command as demo
from hicache_storage.cli.main import INTERRUPTED
from hicache_storage.cli.output import give_up, say
from hicache_storage.cli.replay import command as replay
from hicache_storage.cli.serve import command as serve
from hicache_storage.errors import HiCacheError

_COMMANDS = (demo, serve, plan, replay, ls, stat, explain, verify, doctor, consensus_diff)
_EXIT_CODES = (
    "exit status: 0 done, 1 missing, 2 usage or configuration, 3 store unreachable, 4 corrupt data, 130 interrupted"
)
_OUTPUT_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a write to a full or failing disk says. Stores turn theirs into errors of ours."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="hicache",
        description="L3 storage for the KV cache of LLM servers: see, check and try it.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"hicache {version('hicache-storage')}")
    _add_verbose(parser, 0)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    for subparser in commands.choices.values():
        # Here it has no default, which would undo what was given before the command.
        _add_verbose(subparser, argparse.SUPPRESS)
        subparser.epilog = f"{subparser.epilog}\n\n{_EXIT_CODES}"
    return parser


def _add_verbose(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument(
        "-v", "--verbose", action="count", default=default, help="log more to stderr; -vv for debugging"
    )


def run(argv: Sequence[str] | None) -> int:
    """Run one command and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(argv)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our pipe has seen enough.
        give_up(sys.stdout)
        return exit_codes.DONE
    except OSError as error:
        if error.errno not in _OUTPUT_TROUBLE or error.filename is not None:
            raise
        give_up(sys.stdout)
        say(f"hicache: the output cannot be written: {error.strerror}")
        return exit_codes.USAGE
    except KeyboardInterrupt:
        say("hicache: interrupted")
        return INTERRUPTED


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
