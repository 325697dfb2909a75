"""`hicache consensus-diff`: where the ranks of a deployment first did different things, from the logs of all of them."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from hicache_storage.cli import exit_codes
from hicache_storage.cli.options import add_command, add_json_argument
from hicache_storage.cli.output import print_json, print_table, printable, say
from hicache_storage.config import whole_number
from hicache_storage.engine_integration.consensus.divergence import Divergence, sides
from hicache_storage.engine_integration.consensus.entry import Entry, Rank
from hicache_storage.engine_integration.consensus.offline import Comparison, compare
from hicache_storage.engine_integration.consensus.rank_log import Header, LogReader
from hicache_storage.errors import ConfigError

_EXAMPLES = """\
hicache consensus-diff logs
hicache consensus-diff host1/*.jsonl host2/*.jsonl --json"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "consensus-diff",
        summary="compare the rank logs of the rank consensus checker",
        description="Compare what the ranks of one run did, in order: all of them, TP peers within a stage, and the "
        "stages at each TP position. Says what differs first: call order, parameters or results. Ranks write these "
        "logs under hicache serve --rank-consensus, or with HICACHE_RANK_CONSENSUS_CHECKER=1 and "
        "HICACHE_RANK_CONSENSUS_LOG_FOLDER. Exit status 1 if ranks differ, 4 if they do not as far as the logs can be "
        "read, and a part of them cannot.",
        examples=_EXAMPLES,
    )
    parser.add_argument("logs", metavar="LOG", nargs="+", type=Path, help="a rank log, or a folder with rank logs")
    parser.add_argument(
        "--history", metavar="N", type=_history, default=8, help="equal entries shown before the first difference"
    )
    add_json_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the first differences; MISSING if there are any, CORRUPT if none is found in logs with unreadable parts."""
    try:
        readers = [LogReader(path) for path in _files(args.logs)]
        logs, header = _by_rank(readers)
        entries = {rank: chain.from_iterable(log.entries() for log in parts) for rank, parts in logs.items()}
        groups = compare(entries, history=args.history) if header is not None and len(logs) > 1 else []
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
    problems = [(reader.path, problem) for reader in readers for problem in reader.problems]
    for path, problem in problems:
        say(f"hicache: {printable(path)}: {printable(problem)}")
    if header is None or not groups:
        if problems:
            return exit_codes.CORRUPT
        raise ConfigError(f"logs of two ranks at least are needed; given: {', '.join(map(str, logs)) or 'none'}")
    absent = sorted({Rank(pp, tp) for pp in range(header.pp) for tp in range(header.tp)} - logs.keys())
    if args.json:
        print_json(_document(groups, absent, [f"{path}: {problem}" for path, problem in problems]))
    else:
        _show(groups, absent)
    if groups[0].divergence is not None:
        return exit_codes.MISSING
    return exit_codes.CORRUPT if problems else exit_codes.DONE


def _history(text: str) -> int:
    try:
        return whole_number(0, 1000)(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the log files that *paths* name, each once."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not found:
            raise ConfigError(f"the folder {path} has no *.jsonl in it")
        if not all(file.is_file() for file in found):
            raise ConfigError(f"{path} is no file; logs are read more than once")
        files += found
    return list(dict.fromkeys(file.resolve() for file in files))


def _by_rank(readers: Sequence[LogReader]) -> tuple[dict[Rank, list[LogReader]], Header | None]:
    """Return each rank's logs, the older part of one that was begun anew first, and one of the headers.

    Raises:
        ConfigError: they are of different runs, or a rank has the same entries twice.
    """
    logs: defaultdict[Rank, list[LogReader]] = defaultdict(list)
    headers = {reader.path: reader.header for reader in readers if reader.header is not None}
    runs = {(header.run, header.tp, header.pp): path for path, header in headers.items()}
    if len(runs) > 1:
        first, other, *_ = runs.values()
        raise ConfigError(f"{first} and {other} are logs of different runs; give those of one")
    for reader in readers:
        if reader.header is not None:
            logs[reader.header.rank].append(reader)
    for rank, parts in logs.items():
        parts.sort(key=lambda reader: reader.first_number())
        first_numbers = [part.first_number() for part in parts]
        if len(set(first_numbers)) < len(first_numbers):
            raise ConfigError(f"{parts[0].path} and {parts[1].path} are both the log of {rank}; give one")
    return dict(logs), next(iter(headers.values()), None)


def _document(groups: Sequence[Comparison], absent: Sequence[Rank], problems: Sequence[str]) -> dict[str, object]:
    return {
        "equal": groups[0].divergence is None,
        "ranks": [str(rank) for rank in groups[0].ranks],
        "absent_ranks": [str(rank) for rank in absent],
        "comparisons": [
            {
                "name": group.name,
                "ranks": [str(rank) for rank in group.ranks],
                "first_difference": None if group.divergence is None else _difference(group.divergence),
            }
            for group in groups
        ],
        "problems": list(problems),
    }


def _difference(divergence: Divergence) -> dict[str, object]:
    return {
        "number": divergence.number,
        "differs": str(divergence.differs),
        "entries": {str(rank): _fields(entry) for rank, entry in divergence.entries.items()},
        "before": [_fields(entry) for entry in divergence.before],
    }


def _fields(entry: Entry | None) -> dict[str, object] | None:
    return None if entry is None else entry._asdict()


def _show(groups: Sequence[Comparison], absent: Sequence[Rank]) -> None:
    print_table(["compared", "ranks", "first difference", "what differs"], _rows(groups))
    if absent:
        say(f"hicache: no log of {', '.join(map(str, absent))}")
    divergence = groups[0].divergence
    if divergence is None:
        return
    print(f"\nentry {divergence.number}: {divergence.differs}; {divergence.differs.advice}")
    print_table(["ranks", "entry"], sides(divergence.entries))
    if divergence.before:
        print("\nbefore it, equal on all ranks")
        print_table(["number", "entry"], [(entry.number, entry) for entry in divergence.before])


def _rows(groups: Sequence[Comparison]) -> Iterator[tuple[object, ...]]:
    for group in groups:
        found = group.divergence
        where = ("none", "") if found is None else (f"entry {found.number}", str(found.differs))
        yield group.name, " ".join(map(str, group.ranks)), *where
