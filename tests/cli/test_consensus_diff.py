"""`hicache consensus-diff`: what it says of rank logs, and what it does with files that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hicache_storage.engine_integration.consensus.entry import Entry, Rank
from hicache_storage.engine_integration.consensus.rank_log import Header, RankLog
from tests.cli.running import Hicache

RANKS = [Rank(pp, tp) for pp in range(2) for tp in range(2)]
RESULTS = [2, 3, 6, 4]


def plant(folder: Path, rank: Rank, entries: list[Entry], run: int = 7) -> Path:
    log = RankLog(folder, Header(run, rank.pp_rank, rank.tp_rank, pp=2, tp=2), 1 << 20)
    for entry in entries:
        log.add(entry)
    log.close()
    return log.path


def calls(results: list[int]) -> list[Entry]:
    return [
        entry
        for turn, result in enumerate(results)
        for entry in (
            Entry(2 * turn, "call", "Cache.match", f"request_id='r{turn}'", 1.0),
            Entry(2 * turn + 1, "return", "Cache.match", f"result={result}", 1.0),
        )
    ]


@pytest.fixture
def logs(tmp_path: Path) -> dict[Rank, Path]:
    """Logs of four ranks, of which the last one has another result in entry 5."""
    return {
        rank: plant(tmp_path / "logs", rank, calls([2, 3, 9, 4] if rank == RANKS[-1] else RESULTS)) for rank in RANKS
    }


@pytest.fixture
def equal_logs(tmp_path: Path) -> dict[Rank, Path]:
    return {rank: plant(tmp_path / "equal", rank, calls(RESULTS)) for rank in RANKS}


def test_the_first_difference_is_shown_for_each_group_of_ranks(hicache: Hicache, logs: dict[Rank, Path]) -> None:
    ended = hicache("consensus-diff", *map(str, logs.values()))

    assert ended.status == 1
    assert ended.err == ""
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert lines[:6] == [
        "compared ranks first difference what differs",
        "all ranks pp0/tp0 pp0/tp1 pp1/tp0 pp1/tp1 entry 5 results",
        "TP peers of pp0 pp0/tp0 pp0/tp1 none",
        "TP peers of pp1 pp1/tp0 pp1/tp1 entry 5 results",
        "tp0 of all stages pp0/tp0 pp1/tp0 none",
        "tp1 of all stages pp0/tp1 pp1/tp1 entry 5 results",
    ]
    assert "pp0/tp0 pp0/tp1 pp1/tp0 Cache.match returns result=6" in lines
    assert "pp1/tp1 Cache.match returns result=9" in lines
    assert lines[-1] == "4 Cache.match(request_id='r2')"


def test_a_folder_stands_for_the_logs_in_it(hicache: Hicache, logs: dict[Rank, Path]) -> None:
    by_folder = hicache("consensus-diff", str(logs[RANKS[0]].parent))

    assert by_folder == hicache("consensus-diff", *map(str, logs.values()))


def test_the_same_as_json(hicache: Hicache, logs: dict[Rank, Path]) -> None:
    ended = hicache("consensus-diff", str(logs[RANKS[0]].parent), "--json", "--history", "1")

    document = ended.json()
    assert ended.status == 1
    assert document["equal"] is False
    assert document["ranks"] == ["pp0/tp0", "pp0/tp1", "pp1/tp0", "pp1/tp1"]
    assert (document["absent_ranks"], document["problems"]) == ([], [])
    comparisons = document["comparisons"]
    assert isinstance(comparisons, list)
    assert comparisons[1] == {
        "name": "TP peers of pp0",
        "ranks": ["pp0/tp0", "pp0/tp1"],
        "first_difference": None,
    }
    difference = comparisons[2]["first_difference"]
    assert (difference["number"], difference["differs"]) == (5, "results")
    assert difference["entries"]["pp1/tp1"]["value"] == "result=9"
    assert [entry["number"] for entry in difference["before"]] == [4]


def test_equal_logs_are_status_zero(hicache: Hicache, equal_logs: dict[Rank, Path]) -> None:
    ended = hicache("consensus-diff", *map(str, equal_logs.values()))

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("none") == 5


def test_a_rank_without_a_log_is_named(hicache: Hicache, equal_logs: dict[Rank, Path]) -> None:
    ended = hicache("consensus-diff", *map(str, list(equal_logs.values())[:3]))

    assert ended.status == 0
    assert "no log of pp1/tp1" in ended.err


def test_the_two_parts_of_a_log_that_was_begun_anew_are_one(hicache: Hicache, tmp_path: Path) -> None:
    for rank in RANKS:
        if rank != RANKS[1]:
            plant(tmp_path, rank, calls(RESULTS))
    older = plant(tmp_path, RANKS[1], calls(RESULTS)[:3])
    older.rename(older.with_suffix(".old.jsonl"))
    plant(tmp_path, RANKS[1], calls(RESULTS)[3:])

    ended = hicache("consensus-diff", str(tmp_path))

    assert (ended.status, ended.err) == (0, "")


def test_logs_of_two_runs_are_refused(hicache: Hicache, logs: dict[Rank, Path], tmp_path: Path) -> None:
    other = plant(tmp_path, RANKS[0], calls(RESULTS), run=8)

    ended = hicache("consensus-diff", str(logs[RANKS[1]]), str(other))

    assert ended.status == 2
    assert "different runs" in ended.err


def test_two_logs_of_one_rank_are_refused(hicache: Hicache, logs: dict[Rank, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(logs[RANKS[0]].read_bytes())

    ended = hicache("consensus-diff", *map(str, logs.values()), str(copy))

    assert ended.status == 2
    assert "both the log of pp0/tp0" in ended.err


def test_one_log_is_too_few(hicache: Hicache, logs: dict[Rank, Path]) -> None:
    ended = hicache("consensus-diff", str(logs[RANKS[0]]))

    assert ended.status == 2
    assert "logs of two ranks at least are needed; given: pp0/tp0" in ended.err


def test_what_is_no_file_is_a_usage_error(hicache: Hicache, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()

    for name in ("absent", "pipe", "empty"):
        ended = hicache("consensus-diff", str(tmp_path / name))

        assert (ended.status, ended.out) == (2, "")
        assert name in ended.err


@pytest.mark.parametrize("content", [b"", b"\0" * 1000, b"{}\n", b"[" * 70_000])
def test_a_file_that_is_no_log_is_status_four(
    hicache: Hicache, equal_logs: dict[Rank, Path], tmp_path: Path, content: bytes
) -> None:
    stranger = tmp_path / "stranger.jsonl"
    stranger.write_bytes(content)

    beside_logs = hicache("consensus-diff", *map(str, equal_logs.values()), str(stranger))
    alone = hicache("consensus-diff", str(stranger))

    assert (beside_logs.status, alone.status) == (4, 4)
    assert "stranger.jsonl: line 1:" in beside_logs.err


def test_a_damaged_line_is_status_four_unless_a_difference_is_found(
    hicache: Hicache, equal_logs: dict[Rank, Path], logs: dict[Rank, Path]
) -> None:
    for paths, status in ((equal_logs, 4), (logs, 1)):
        damaged = paths[RANKS[0]]
        lines = damaged.read_bytes().splitlines(keepends=True)
        damaged.write_bytes(b"".join([*lines[:2], b"{\x1b[2J\n", *lines[3:]]))

        ended = hicache("consensus-diff", *map(str, paths.values()))

        assert ended.status == status
        assert "line 3:" in ended.err
        assert "\x1b" not in ended.err + ended.out


def test_text_of_logs_moves_no_cursor(hicache: Hicache, tmp_path: Path) -> None:
    for rank in RANKS[:2]:
        plant(tmp_path, rank, [Entry(0, "call", "f\x1b[2J", f"\n{rank.tp_rank}\x07", 1.0)])

    ended = hicache("consensus-diff", str(tmp_path))

    assert ended.status == 1
    assert "\x1b" not in ended.out
    assert "\x07" not in ended.out


@pytest.mark.parametrize("history", ["-1", "x", "1001"])
def test_a_history_that_is_no_number_is_a_usage_error(hicache: Hicache, logs: dict[Rank, Path], history: str) -> None:
    assert hicache("consensus-diff", str(logs[RANKS[0]].parent), "--history", history).status == 2
