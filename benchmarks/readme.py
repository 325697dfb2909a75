"""Puts the tables between their markers, so that no document can disagree with the results.

<!-- benchmarks:file_read -->
...
<!-- /benchmarks:file_read -->
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.registry import CASES
from benchmarks.rows import Result, from_csv
from benchmarks.tables import TABLES

RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md", ROOT / "benchmarks" / "README.md")

_BLOCK = re.compile(r"(<!-- benchmarks:(\w+) -->\n)(.*?)(<!-- /benchmarks:\2 -->)", re.DOTALL)
_MARKER = re.compile(r"<!-- /?benchmarks:(\w+) -->")


def render(text: str, results: Path) -> str:
    """Return *text* with every marked table made anew from the CSV files in *results*.

    Raises:
        ValueError: a marker names no table, is not closed, or its results are missing.
    """
    rendered, blocks = _BLOCK.subn(lambda match: match[1] + table(match[2], results) + match[4], text)
    if 2 * blocks != len(_MARKER.findall(text)):
        raise ValueError("a benchmarks marker is not paired with its closing one")
    return rendered


def table(name: str, results: Path) -> str:
    """Return one table, made of the CSV files in *results*."""
    if name not in TABLES:
        raise ValueError(f"no table {name!r}; there are {', '.join(TABLES)}")
    cases, make = TABLES[name]
    return make(*(load(case, results) for case in cases))


def load(case: str, results: Path) -> list[Result]:
    """Return the results of *case*."""
    path = results / f"{case}.csv"
    if not path.is_file():
        raise ValueError(f"no results of {case}: python -m benchmarks run {case}")
    return [*from_csv(CASES[case].kind, path.read_text())]


def stale(documents: tuple[Path, ...] = DOCUMENTS, results: Path = RESULTS) -> list[Path]:
    """Return the documents whose tables differ from the results."""
    texts = {path: path.read_text() for path in documents if path.is_file()}
    return [path for path, text in texts.items() if render(text, results) != text]


def update(documents: tuple[Path, ...] = DOCUMENTS, results: Path = RESULTS) -> list[Path]:
    """Rewrite the tables of every document that is stale; return those that changed."""
    changed = stale(documents, results)
    for path in changed:
        path.write_text(render(path.read_text(), results))
    return changed
