"""A row keeps what was measured and where it comes from, through CSV and JSON."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from benchmarks.machine import Provenance
from benchmarks.registry import CASES
from benchmarks.rows import Finding, Row, from_csv, to_csv, to_json
from benchmarks.runner import percentiles


def test_csv_gives_back_what_it_was_made_of(rows: list[Row]) -> None:
    rows[0] = replace(rows[0], gb_s=None, calls='a, "quoted" call')

    assert from_csv(Row, to_csv(rows)) == rows


def test_findings_survive_csv_too(provenance: Provenance) -> None:
    finding = Finding(
        case="corruption",
        fault="bit flip",
        subject="ours",
        version="0.1.0",
        object_nbytes=4096,
        read="miss",
        neighbours=3,
        healed=True,
        provenance=provenance,
    )

    assert from_csv(Finding, to_csv([finding])) == [finding]


def test_columns_of_another_format_are_refused(rows: list[Row]) -> None:
    text = to_csv(rows).replace("share_of_raw", "share")

    with pytest.raises(ValueError, match="columns"):
        from_csv(Row, text)


def test_every_row_says_where_it_comes_from(rows: list[Row]) -> None:
    shared = {field.name for field in fields(Provenance)}

    assert all(shared <= row.keys() for row in json.loads(to_json(rows)))


def test_percentiles_lie_between_the_neighbours() -> None:
    assert percentiles([4.0, 1.0, 2.0, 3.0, 5.0, 6.0]) == (2.0, 3.5, 5.0)


def test_one_round_is_its_own_percentile() -> None:
    assert percentiles([7.0]) == (7.0, 7.0, 7.0)


def test_every_case_has_a_description_of_one_line() -> None:
    assert all(case.description and "\n" not in case.description for case in CASES.values())
