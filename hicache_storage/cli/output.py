"""Tables, JSON, sizes and progress, the same in every command."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from typing import TextIO, TypeVar

T = TypeVar("T")

_REDRAW_EVERY_S = 0.1
_BAR_CELLS = 24


def print_json(value: object) -> None:
    """Write *value* to stdout as indented JSON, in ASCII: no locale can refuse it."""
    print(json.dumps(value, indent=2))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write *rows* to stdout in columns as wide as their content; numbers stand right."""
    body = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(headers), *body]) for column in range(len(headers))]
    numeric = [bool(body) and all(_is_number(line[column]) for line in body) for column in range(len(headers))]
    for line in [list(headers), *body]:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        print("  ".join(cells).rstrip())


def printable(value: object) -> str:
    """Return *value* as text that moves no cursor and breaks no line: keys and names may be anybody's."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, thing: str) -> str:
    """Return ``1 object`` or ``2 objects``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def human_nbytes(nbytes: float) -> str:
    """Return a size for reading: ``1.9 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def human_time(seconds_since_epoch: float | None) -> str:
    """Return a point in time in UTC, or ``-`` where it is not known."""
    if seconds_since_epoch is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds_since_epoch))


def say(message: str) -> None:
    """Write one line for the human to stderr; nothing happens where that is closed, full or no longer read."""
    if sys.stderr is not None:
        try:
            print(message, file=sys.stderr, flush=True)
        except OSError:
            give_up(sys.stderr)


def give_up(stream: TextIO) -> None:
    """Let what is still to be written to *stream* vanish, so that the interpreter does not fail on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def progress(items: Iterable[T], *, total: int | None, label: str) -> Generator[T, None, None]:
    """Yield *items* and show on stderr how many are done; silent where stderr is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield from items
        return
    drawn = 0.0
    count = 0
    try:
        for item in items:
            yield item
            count += 1
            now = time.monotonic()
            if now - drawn >= _REDRAW_EVERY_S:
                drawn = now
                _draw(label, count, total)
    finally:
        # Also where a failure or Ctrl-C ends it: what is said about that starts on a line of its own.
        _draw(label, count, total)
        sys.stderr.write("\n")


def _draw(label: str, count: int, total: int | None) -> None:
    if total:
        filled = min(_BAR_CELLS, count * _BAR_CELLS // total)
        bar = "#" * filled + "." * (_BAR_CELLS - filled)
        sys.stderr.write(f"\r{label} [{bar}] {count}/{total}")
    else:
        sys.stderr.write(f"\r{label} {count}")
    sys.stderr.flush()


def _is_number(cell: str) -> bool:
    return cell.replace(".", "", 1).replace(",", "").isdigit() or cell == "-"
