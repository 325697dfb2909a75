"""One rank's entries on disk, as JSON lines: written while it runs, read by `hicache consensus-diff`.

The first line is a `Header`, every other one a `Line`, in the order of their numbers. A run's logs carry the run's
number, so that those of two runs are not taken for ranks of one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, BinaryIO, TypeVar

import msgspec

from hicache_storage.engine_integration.consensus.entry import MAX_NAME_CHARS, MAX_VALUE_CHARS, Entry, Event, Rank
from hicache_storage.engine_integration.store_tier.worker import Worker

_MAX_LINE_NBYTES = 1 << 16
_MAX_PROBLEMS = 20

_log = logging.getLogger(__name__)

L = TypeVar("L")

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
Value = Annotated[str, msgspec.Meta(max_length=MAX_VALUE_CHARS)]


class Header(msgspec.Struct, frozen=True, tag="rank_log", tag_field="line"):
    """Whose log this is."""

    run: Count
    pp_rank: Count
    tp_rank: Count
    pp: Size
    tp: Size
    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1

    @property
    def rank(self) -> Rank:
        return Rank(self.pp_rank, self.tp_rank)


class Line(msgspec.Struct, frozen=True, tag="entry", tag_field="line"):
    """One entry."""

    number: Count
    event: Event
    name: Name
    value: Value
    at_s: float


class RankLog:
    """Writes the log of a rank on a thread of its own.

    Args:
        folder: made if it is not there; the log in it is for its owner's eyes.
        max_nbytes: when the log has as many, it becomes ``....old.jsonl`` in place of an older one, and a new one begins.
    """

    def __init__(self, folder: Path, header: Header, max_nbytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"consensus-{header.run}-pp{header.pp_rank}-tp{header.tp_rank}.jsonl"
        self._header = header
        self._max_nbytes = max_nbytes
        self._encoder = msgspec.json.Encoder()
        self._file: BinaryIO | None = self._begin()
        self._worker: Worker[Entry] = Worker("hicache-consensus-log", self._write, self._failed)
        self.add: Callable[[Entry], None] = self._worker.submit

    def close(self, timeout_s: float | None = None) -> None:
        """Write what is queued and end the thread; after *timeout_s* it is left to end by itself."""
        if self._worker.close(timeout_s):
            self._leave()

    def _begin(self) -> BinaryIO:
        file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)
        file.write(self._encoder.encode(self._header) + b"\n")
        return file

    def _write(self, entry: Entry) -> None:
        if self._file is None:
            return
        self._file.write(self._encoder.encode(Line(*entry)) + b"\n")
        if self._file.tell() >= self._max_nbytes:
            self._file.close()
            self.path.replace(self.path.with_suffix(".old.jsonl"))
            self._file = self._begin()

    def _failed(self, entry: Entry, error: BaseException) -> None:
        _log.warning("rank_consensus.log_ended path=%s entry=%d error=%s", self.path, entry.number, error)
        self._leave()

    def _leave(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # A device that is full says so again; there is nothing more to lose.
                file.close()


class LogReader:
    """The entries of one log file, whatever is in it.

    Attributes:
        header: None if the file does not begin with one.
        problems: what could not be read so far, with the number of its line; the first few.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        with path.open("rb") as file:
            self.header = self._decoded(_HEADERS, _read_line(file), 1)

    def first_number(self) -> int:
        """Return the number of the first entry; -1 if there is none."""
        return next((entry.number for entry in LogReader(self.path).entries()), -1)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries in ascending order; lines that are none, or out of order, are problems and left out."""
        last = -1
        with self.path.open("rb") as file:
            _read_line(file)
            at = 1
            while data := _read_line(file):
                at += 1
                line = self._decoded(_LINES, data, at)
                if line is not None and line.number <= last:
                    self._problem(at, f"entry {line.number} comes after entry {last}")
                elif line is not None:
                    last = line.number
                    yield Entry(line.number, line.event, line.name, line.value, line.at_s)

    def _decoded(self, decoder: msgspec.json.Decoder[L], data: bytes, at: int) -> L | None:
        try:
            line = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._problem(at, str(error))
        except RecursionError:
            self._problem(at, "nested too deeply")
        else:
            return line
        return None

    def _problem(self, at: int, what: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(f"line {at}: {what}")


def _read_line(file: BinaryIO) -> bytes:
    """Return the next line, of one too long no more than its start; nothing at the end."""
    data = file.readline(_MAX_LINE_NBYTES)
    rest = data
    while len(rest) == _MAX_LINE_NBYTES and not rest.endswith(b"\n"):
        rest = file.readline(_MAX_LINE_NBYTES)
    return data


_HEADERS = msgspec.json.Decoder(Header)
_LINES = msgspec.json.Decoder(Line)
