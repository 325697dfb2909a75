"""Rank logs: everything that a rank did is in its own, and whatever is in a file can be read."""

from __future__ import annotations

import errno
import io
import logging
import stat
import threading
from pathlib import Path

import pytest

from hicache_storage.engine_integration.consensus.decorator import rank_consensus
from hicache_storage.engine_integration.consensus.entry import Entry, Rank
from hicache_storage.engine_integration.consensus.rank_log import Header, LogReader, RankLog
from tests.engine_integration.consensus.ranks import PATIENCE_S, Ranks, options

HEADER = Header(run=5, pp_rank=1, tp_rank=0, pp=2, tp=1)


def entry(number: int, value: str = "") -> Entry:
    return Entry(number, "call", "f", value, 1.5)


def written(folder: Path, *entries: Entry, max_nbytes: int = 1 << 20) -> Path:
    log = RankLog(folder, HEADER, max_nbytes)
    for one in entries:
        log.add(one)
    log.close()
    return log.path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    entries = [entry(0, "a='\\x00'"), Entry(1, "raise", "f", "ValueError", 2.0), Entry(2, "end", "", "", 2.5)]

    reader = LogReader(written(tmp_path / "made" / "here", *entries))

    assert reader.header is not None
    assert reader.header.rank == Rank(1, 0)
    assert list(reader.entries()) == entries
    assert reader.problems == []


def test_a_log_is_for_its_owners_eyes(tmp_path: Path) -> None:
    assert stat.S_IMODE(written(tmp_path).stat().st_mode) == 0o600


def test_a_log_that_grows_large_begins_anew_and_the_one_before_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path, *(entry(number) for number in range(10)), max_nbytes=400)

    numbers = [[one.number for one in LogReader(log).entries()] for log in sorted(tmp_path.iterdir())]
    assert sorted(log.name for log in tmp_path.iterdir()) == sorted([path.name, path.stem + ".old.jsonl"])
    assert all(LogReader(log).header == HEADER for log in tmp_path.iterdir())
    newest_first = [number for part in numbers for number in part]
    assert sorted(newest_first) == list(range(10 - len(newest_first), 10))


def test_a_log_that_cannot_be_written_is_given_up_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = RankLog(tmp_path, HEADER, 1 << 20)
    assert log._file is not None
    log._file.close()

    for number in range(3):
        log.add(entry(number))
    log.close()

    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1
    assert "rank_consensus.log_ended" in caplog.text


class Full(io.BytesIO):
    """A file on a device that is full, which says so again when the file is closed."""

    def write(self, _: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    def close(self) -> None:
        raise OSError(errno.ENOSPC, "full")


def test_a_log_that_cannot_even_be_closed_is_given_up_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = RankLog(tmp_path, HEADER, 1 << 20)
    assert log._file is not None
    log._file.close()
    log._file = Full()

    for number in range(3):
        log.add(entry(number))
    log.close()

    assert caplog.text.count("rank_consensus.log_ended") == 1


def test_a_log_on_a_device_that_hangs_is_left_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RankLog(tmp_path, HEADER, 1 << 20)
    hangs, go_on = threading.Event(), threading.Event()
    write = log._encoder.encode

    class Hanging:
        def encode(self, line: object) -> bytes:
            hangs.set()
            assert go_on.wait(PATIENCE_S)
            return write(line)

    monkeypatch.setattr(log, "_encoder", Hanging())
    log.add(entry(0))
    assert hangs.wait(PATIENCE_S)

    log.close(timeout_s=0.01)

    go_on.set()
    log.close()
    assert [one.number for one in LogReader(log.path).entries()] == [0]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"line":"entry","number":-1,"event":"call","name":"f","value":"","at_s":0}',
        b'{"line":"entry","number":1e30,"event":"call","name":"f","value":"","at_s":0}',
        b'{"line":"entry","number":1,"event":"sing","name":"f","value":"","at_s":0}',
        b'{"line":"entry","number":1,"event":"call","name":"f","value":"","at_s":1e999}',
        b'{"line":"entry","number":1,"event":"call","name":"f","value":"' + b"v" * 2001 + b'","at_s":0}',
        b'{"line":"entry","number":1,"event":"call","name":"f","value":"\\ud800","at_s":0}',
        b'{"line":"other","number":1}',
        b'{"line":"entry"}',
        b"[" * 30_000,
        b"x" * 200_000,
        b'{"line":"rank_log","run":1,"pp_rank":0,"tp_rank":0,"pp":1,"tp":1}',
    ],
)
def test_a_line_that_is_no_entry_is_a_problem_and_the_rest_is_read(tmp_path: Path, line: bytes) -> None:
    path = written(tmp_path, entry(0), entry(2))
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[2:]]) + b"\n")

    reader = LogReader(path)

    assert [one.number for one in reader.entries()] == [0, 2]
    assert [problem.partition(":")[0] for problem in reader.problems] == ["line 3"]


def test_entries_out_of_order_are_problems(tmp_path: Path) -> None:
    reader = LogReader(written(tmp_path, *map(entry, (0, 3, 3, 1, 4))))

    assert [one.number for one in reader.entries()] == [0, 3, 4]
    assert reader.problems == ["line 4: entry 3 comes after entry 3", "line 5: entry 1 comes after entry 3"]


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"\0" * 100_000, b'{"line":"entry"}\n'])
def test_a_file_that_is_no_log_has_no_header(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)

    reader = LogReader(path)

    assert reader.header is None
    assert len(reader.problems) == 1


@pytest.mark.usefixtures("checker_on")
def test_every_rank_writes_all_its_entries(tmp_path: Path) -> None:
    @rank_consensus(same_params=True)
    def poll(turn: int) -> None:
        """Only its calls count."""

    ranks = Ranks("tp2pp2", options(log_folder=tmp_path))

    ranks.run(lambda rank: [poll(turn) for turn in range(20 + rank)])

    readers = [LogReader(path) for path in sorted(tmp_path.iterdir())]
    headers = [reader.header for reader in readers if reader.header is not None]
    assert [header.rank for header in headers] == [Rank(0, 0), Rank(0, 1), Rank(1, 0), Rank(1, 1)]
    assert len({header.run for header in headers}) == 1
    assert [len(list(reader.entries())) for reader in readers] == [2 * (20 + rank) + 1 for rank in range(4)]


@pytest.mark.usefixtures("checker_on")
def test_a_log_goes_on_to_its_end_after_the_comparison_has_ended(tmp_path: Path) -> None:
    @rank_consensus(same_params=True)
    def poll(turn: int) -> None:
        """Only its calls count."""

    @rank_consensus
    def other() -> None:
        """Made by one rank alone."""

    ranks = Ranks("tp2", options(log_folder=tmp_path))

    ranks.run(lambda rank: [other() if rank == turn == 1 else poll(turn) for turn in range(500)])

    for path in tmp_path.iterdir():
        *_, last = LogReader(path).entries()
        assert (last.number, last.event) == (1000, "end")
