"""No document disagrees with the results, and a missed target says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.readme import DOCUMENTS, RESULTS, render, stale, update
from benchmarks.registry import CASES
from benchmarks.rows import Finding, Row, from_csv, save
from benchmarks.tables import TABLES, break_even, copies, corruption, relayouts, servers, sglang, targets, transfer

DOCUMENT = "before\n<!-- benchmarks:file_read -->\nold\n<!-- /benchmarks:file_read -->\nafter\n"


def test_no_document_differs_from_the_results() -> None:
    assert stale() == []


def test_every_case_has_results_and_they_are_its_own() -> None:
    cases = {path.stem: from_csv(CASES[path.stem].kind, path.read_text()) for path in RESULTS.glob("*.csv")}

    assert {name: {result.case for result in results} for name, results in cases.items()} == {n: {n} for n in CASES}


def test_every_table_needs_cases_that_exist() -> None:
    assert {case for cases, _ in TABLES.values() for case in cases} <= CASES.keys()


def test_every_table_stands_in_a_document() -> None:
    text = "".join(path.read_text() for path in DOCUMENTS if path.is_file())

    assert [name for name in TABLES if f"<!-- benchmarks:{name} -->" not in text] == []


def test_a_table_replaces_what_stood_between_its_markers(rows: list[Row], tmp_path: Path) -> None:
    save(rows, tmp_path)

    rendered = render(DOCUMENT, tmp_path)

    assert rendered.startswith("before\n<!-- benchmarks:file_read -->\n|")
    assert "old" not in rendered
    assert rendered.endswith("<!-- /benchmarks:file_read -->\nafter\n")


def test_rendering_twice_changes_nothing(rows: list[Row], tmp_path: Path) -> None:
    save(rows, tmp_path)
    once = render(DOCUMENT, tmp_path)

    assert render(once, tmp_path) == once


def test_an_edited_table_is_stale_until_it_is_made_anew(rows: list[Row], tmp_path: Path) -> None:
    save(rows, tmp_path)
    page = tmp_path / "page.md"
    page.write_text(DOCUMENT)

    assert stale((page,), tmp_path) == [page]
    assert update((page,), tmp_path) == [page]
    assert stale((page,), tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "<!-- benchmarks:file_read -->\n",
        "<!-- benchmarks:no_such_table -->\n<!-- /benchmarks:no_such_table -->\n",
        "<!-- benchmarks:file_read -->\n<!-- /benchmarks:file_write -->\n",
    ],
    ids=["not closed", "unknown table", "closed by another name"],
)
def test_a_wrong_marker_is_an_error(text: str, rows: list[Row], tmp_path: Path) -> None:
    save(rows, tmp_path)

    with pytest.raises(ValueError, match=r"benchmarks marker|no table"):
        render(text, tmp_path)


def test_a_table_without_results_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="python -m benchmarks run file_read"):
        render(DOCUMENT, tmp_path)


def test_a_speed_stands_beside_its_share_of_the_limit(rows: list[Row]) -> None:
    assert "| 12.78 (95 %) |" in transfer(rows)


def test_a_busy_machine_is_mentioned(rows: list[Row]) -> None:
    busy = [replace(row, provenance=replace(row.provenance, noisy=True, load1=3.5)) for row in rows]

    assert "load 3.5" in transfer(busy)


def test_a_met_target_and_a_missed_one_look_different(rows: list[Row]) -> None:
    slow = [replace(row, operation="write", share_of_raw=0.5) for row in rows]
    exists = [replace(row, us_per_object=us) for row, us in zip(rows, (1.0, 5.0, 4.0), strict=True)]
    checksum = [replace(rows[1], share_of_raw=0.8)]

    table = targets(rows, slow, exists, checksum)

    assert "| verified read >= 90 % of preadv | 95 % |" in table
    assert "| verified read >= 1.5 x the best peer | 1.90 x SGLang HiCacheFile |" in table
    assert "| write >= 85 % of pwritev | 50 % (missed) |" in table
    assert "| checksum cost < 10 % | 20 % (missed) |" in table
    assert "5.00 us, SGLang 4.00 us: missed" in table


def test_a_share_below_the_target_is_marked_for_this_project_alone(row: Row) -> None:
    client = replace(row, subject="bare_redis", raw="bare_redis")
    ours = replace(client, subject="ours", gb_s=11.0, share_of_raw=0.87)
    alone = replace(client, subject="store_alone", gb_s=10.0, share_of_raw=0.8)
    writes = [replace(each, operation="write") for each in (client, ours, alone)]

    table = servers([*writes, client, ours, alone])

    assert "| write | **hicache_storage** | 11.00 (87 %) |" in table
    assert "| read | **hicache_storage**, verified | 11.00 (87 %) (missed) |" in table
    assert "| read | hicache_storage backend alone, unverified | 10.00 (80 %) |" in table


def test_cuts_stand_beside_each_other(row: Row) -> None:
    rows = [
        replace(row, operation="redis read", subject=cut, gb_s=gb_s) for cut, gb_s in (("cut_1", 2.0), ("cut_8", 1.0))
    ]
    rows += [
        replace(row, operation="redis exists", subject=cut, us_per_object=us)
        for cut, us in (("cut_1", 9.0), ("cut_8", 70.0))
    ]

    table = break_even(rows)

    assert "1 object a page | 8 objects a page |" in table
    assert "| redis | verified read, GB/s | 2.00 | 1.00 |" in table
    assert "| redis | lookup, us a page | 9.0 | 70.0 |" in table


def test_damage_that_stays_and_lost_neighbours_are_told(row: Row) -> None:
    finding = Finding(
        case="corruption",
        fault="truncated",
        subject="sglang",
        version="0.5.23",
        object_nbytes=4096,
        read="error raised",
        neighbours=0,
        healed=False,
        provenance=row.provenance,
    )

    assert "| truncated | error raised, and stays so; 3 neighbours lost |" in corruption([finding])


def test_a_copy_below_its_target_is_marked_for_this_project_alone(row: Row) -> None:
    limit = replace(row, case="gather_scatter", operation="gather", subject="tensor_copy", object_nbytes=15_728_640)
    ours = replace(limit, subject="ours_kernels", gb_s=9.0, share_of_raw=0.9)
    slow = replace(ours, objects=512, gb_s=7.0, share_of_raw=0.79)
    peer = replace(limit, subject="sglang_cpu_copy", gb_s=4.0, share_of_raw=0.4)

    table = copies([limit, ours, slow, peer])

    assert "| page |  |  | 64 pages | 512 pages |" in table
    assert "| 15.7 MB | gather | **hicache_storage**, one head group | 9.00 (90 %) | 7.00 (79 %) (missed) |" in table
    assert "| 4.00 (40 %) |  |" in table


def test_layouts_stand_below_and_subjects_beside_each_other(row: Row) -> None:
    limit = replace(
        row, case="host_relayout", operation="page_head to pages", subject="tensor_copy", object_nbytes=1_474_560
    )
    ours = replace(limit, subject="ours_relayout", gb_s=11.0, share_of_raw=0.82)

    table = relayouts([limit, ours])

    assert "| 1.5 MB | page_head | to pages | 13.42 (100 %) | 11.00 (82 %) |" in table


def test_the_adapter_is_beside_what_sglang_has_and_a_slow_get_is_told(row: Row) -> None:
    bare = replace(row, case="sglang_dynamic", operation="get MHA page_first", subject="sglang_bare", raw="sglang_bare")
    ours = replace(bare, subject="sglang_ours", p50_s=0.008, gb_s=16.0, share_of_raw=1.25)
    file = replace(bare, subject="sglang_file", p50_s=0.048, gb_s=2.7, share_of_raw=0.21)
    slow = [replace(one, operation="get MLA page_first", p50_s=0.02) for one in (bare, ours, file)]

    table = sglang([bare, ours, file, *slow])

    assert "| get MHA page_first | 1 | 2.70 (21 %) | 13.42 (100 %) | 16.00 (125 %) | 6.0x |" in table
    assert "1.0x (missed) |" in table
