"""The command line: ``python -m benchmarks list | run | peers install | readme``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_CASES_HELP = "none = those on files; the ones that start servers take minutes more and are run by name"


def main(arguments: list[str]) -> int:
    """Run one command; 0 = done, 1 = results or documents are not as they should be, 2 = usage, or no server."""
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda ended_by, _: sys.exit(128 + ended_by))
    from benchmarks.runner import WrongBytes  # noqa: PLC0415 - after the threads are pinned
    from hicache_storage.errors import ConfigError, StoreUnavailable  # noqa: PLC0415 - as above

    try:
        return int(options.command(options))
    except WrongBytes as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except (ValueError, ConfigError, StoreUnavailable) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


def _list(_: argparse.Namespace) -> int:
    from benchmarks.registry import CASES  # noqa: PLC0415 - after the threads are pinned

    for name, case in CASES.items():
        print(f"{name:18} {case.description}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from benchmarks.readme import RESULTS  # noqa: PLC0415 - after the threads are pinned
    from benchmarks.session import run_cases  # noqa: PLC0415 - as above

    return run_cases(options, RESULTS)


def _peers(options: argparse.Namespace) -> int:
    from benchmarks.peers.environments import PEERS, install  # noqa: PLC0415 - after the threads are pinned

    unknown = [name for name in options.names if name not in PEERS]
    if unknown:
        raise ValueError(f"no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    install(options.names)
    return 0


def _readme(options: argparse.Namespace) -> int:
    from benchmarks.machine import ROOT  # noqa: PLC0415 - after the threads are pinned
    from benchmarks.readme import stale, update  # noqa: PLC0415 - as above

    paths = stale() if options.check else update()
    for path in paths:
        print(f"{path.relative_to(ROOT)}: {'differs from' if options.check else 'made anew from'} benchmarks/results")
    return 1 if options.check and paths else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("list", help="name every case").set_defaults(command=_list)
    run = commands.add_parser("run", help="measure; rows go to benchmarks/results")
    run.set_defaults(command=_run)
    run.add_argument("cases", nargs="*", metavar="CASE", help=_CASES_HELP)
    run.add_argument("--json", action="store_true", help="rows on stdout as JSON instead of a table")
    run.add_argument(
        "--out", type=Path, metavar="FILE", help="rows to FILE (.csv or .json) instead of benchmarks/results"
    )
    run.add_argument("--peers", default="auto", metavar="auto|none|A,B", help="auto = those installed")
    run.add_argument("--repeat", type=_positive, default=11, metavar="N", help="timed rounds per case (11)")
    run.add_argument("--small", action="store_true", help="a few small objects: checks the harness, stores no results")
    run.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where scratch files go")
    run.add_argument("--tmpfs", action="store_true", help="allow a folder in memory")
    run.add_argument("--max-load", type=float, metavar="X", help="refuse while the load average is above X")
    peers = commands.add_parser("peers", help="environments of other projects").add_subparsers(required=True)
    install = peers.add_parser("install", help="make the environments of peers under benchmarks/peers")
    install.set_defaults(command=_peers)
    install.add_argument("names", nargs="*", metavar="PEER", help="none = all")
    readme = commands.add_parser("readme", help="make the tables in README.md and the documentation anew")
    readme.set_defaults(command=_readme)
    readme.add_argument("--check", action="store_true", help="change nothing; 1 = a table differs from the results")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of rounds")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
