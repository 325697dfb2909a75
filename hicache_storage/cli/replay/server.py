"""`hicache replay --url`: a recorded trace to a running server, once more."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import math
from collections.abc import Mapping
from contextlib import closing
from itertools import count

from hicache_storage.cli.output import progress
from hicache_storage.engine_integration.replay import Trace
from hicache_storage.errors import ConfigError

_FLAGS = {"url", "speed", "trace", "requests", "concurrency", "json"}
"""What means something here; all other flags of the command describe a simulation."""
_SCHEMES = ("http://", "https://")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a server."""
    group = parser.add_argument_group("a running server")
    group.add_argument(
        "--url",
        help="send the trace's requests to this server again, such as http://127.0.0.1:30000, instead of simulating any",
    )
    group.add_argument(
        "--speed",
        metavar="N|max",
        help="send them N times as fast as they came in; max: as fast as --concurrency lets them (default: 1)",
    )


def check(args: argparse.Namespace, defaults: Mapping[str, object]) -> None:
    """Raise where flags for a server and flags for a simulation are mixed.

    Args:
        defaults: what each flag of the command is where it is not given.

    Raises:
        ConfigError: they are; or the URL is none, or there is no trace that a server can be sent.
    """
    given = {name for name, default in defaults.items() if getattr(args, name) != default}
    sends = args.url is not None
    if sends and not args.url.startswith(_SCHEMES):
        raise ConfigError(f"--url {args.url!r}: expected a server such as http://127.0.0.1:30000")
    wrong = min(given - _FLAGS, default=None) if sends else min(given & {"speed"}, default=None)
    if wrong is not None:
        relation = "without" if sends else "with"
        raise ConfigError(f"--{wrong.replace('_', '-')} is for a replay {relation} --url")
    if sends and args.trace is None:
        raise ConfigError("--url needs the --trace that a server has recorded: hicache serve --record-requests FILE")


def run(args: argparse.Namespace) -> int:
    """Send the trace and print what came back; CORRUPT if an answer differs, UNREACHABLE if one did not come."""
    speed = _speed(args.speed)
    trace = Trace(args.trace, most_requests=args.requests)
    if trace.summary.block_tokens is not None:
        raise ConfigError(f"{trace.path} has hash_ids; a server can only be sent the token_ids of a recorded trace")
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError("--url needs aiohttp: pip install 'hicache-storage[server]'")
    # These need aiohttp; other replays and --help do not.
    from hicache_storage.cli.replay import answers as shown  # noqa: PLC0415
    from hicache_storage.cli.replay.resend import Pace, model_of, resend  # noqa: PLC0415

    url = args.url.rstrip("/")
    model = asyncio.run(model_of(url))
    pace = Pace(speed=speed, concurrency=args.concurrency)
    with closing(progress(count(), total=trace.summary.num_requests, label="answered")) as done:
        next(done)
        answers = shown.Answers(trace, url, model, asyncio.run(resend(trace, url, model, pace, lambda: next(done))))
    if args.json:
        shown.print_document(answers)
    else:
        shown.print_report(answers)
    return answers.status


def _speed(text: str | None) -> float | None:
    if text == "max":
        return None
    try:
        speed = 1.0 if text is None else float(text)
    except ValueError:
        speed = math.nan
    if not 0 < speed < math.inf:
        raise ConfigError(f"--speed {text}: expected a number above 0, or max")
    return speed
