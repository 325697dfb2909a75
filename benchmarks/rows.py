"""A result is a row that says where it comes from. CSV in benchmarks/results, one file per case."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from benchmarks.machine import Provenance

T = TypeVar("T", bound="Row | Finding | Served")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One subject's times for one operation on one workload.

    Attributes:
        p20_s, p50_s, p80_s, best_s: seconds of one pass over all objects, over *rounds* interleaved passes.
        gb_s: payload bytes per second of the median pass, in 10^9; None where no payload moves.
        us_per_object: microseconds per object of the median pass.
        share_of_raw: median over the rounds of raw's seconds / this subject's in the same round.
        raw: the subject that the share is taken of.
        calls: what was timed, in the subject's own names.
    """

    case: str
    operation: str
    subject: str
    version: str
    object_nbytes: int
    objects: int
    batch: int
    threads: int
    rounds: int
    p20_s: float
    p50_s: float
    p80_s: float
    best_s: float
    gb_s: float | None
    us_per_object: float
    share_of_raw: float
    raw: str
    page_cache: str
    calls: str
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a subject does with one damaged object among four.

    Attributes:
        read: what a read of the damaged object gave.
        neighbours: how many of the three undamaged objects of the same call came right.
        healed: whether it reads right after the object was stored once more.
    """

    case: str
    fault: str
    subject: str
    version: str
    object_nbytes: int
    read: str
    neighbours: int
    healed: bool
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a client saw of a server; medians over *rounds* runs.

    Attributes:
        store: L3 backend of the server, or ``off``.
        moment: which server of the round.
        client: package and version that sent *requests*.
        traffic: its flags.
        prompt_tokens: of all requests; *cached_device*, *cached_host* and *cached_store* of them were not computed.
        median_ttft_s, mean_ttft_s, p99_ttft_s: time to first token, of one run.
        duration_s: of the whole run.
    """

    case: str
    store: str
    moment: str
    client: str
    traffic: str
    requests: int
    rounds: int
    prompt_tokens: int
    cached_device: int
    cached_host: int
    cached_store: int
    median_ttft_s: float
    mean_ttft_s: float
    p99_ttft_s: float
    duration_s: float
    provenance: Provenance


Result: TypeAlias = Row | Finding | Served


def to_csv(results: Sequence[Result]) -> str:
    """Return *results*, all of one kind, as CSV with a header; floats with six significant digits."""
    out = io.StringIO()
    table = [flat(result) for result in results]
    writer = csv.DictWriter(out, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in table)
    return out.getvalue()


def from_csv(kind: type[T], text: str) -> list[T]:
    """Return the results of a CSV that `to_csv` made.

    Raises:
        ValueError: the header is not that of *kind*, or a cell does not parse.
    """
    reader = csv.DictReader(io.StringIO(text))
    mine, shared = _columns(kind)
    if reader.fieldnames != [*mine, *shared]:
        raise ValueError(f"columns {reader.fieldnames} are not those of {kind.__name__}: {[*mine, *shared]}")
    return [_result(kind, line, mine, shared) for line in reader]


def to_json(results: Sequence[Result]) -> str:
    """Return *results* as one JSON array of flat objects."""
    return json.dumps([flat(result) for result in results], indent=2)


def flat(result: Result) -> dict[str, object]:
    """Return one result with the fields of its provenance beside its own."""
    fields: dict[str, object] = dataclasses.asdict(result)
    del fields["provenance"]
    return fields | dataclasses.asdict(result.provenance)


def save(results: Sequence[Result], folder: Path) -> Path:
    """Replace the case's file in *folder* with *results*, all of one case."""
    path = folder / f"{results[0].case}.csv"
    path.write_text(to_csv(results))
    return path


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def _columns(kind: type[object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the types of the columns that are *kind*'s own and of those it shares with its run."""
    mine = typing.get_type_hints(kind)
    del mine["provenance"]
    return mine, typing.get_type_hints(Provenance)


def _result(kind: type[T], line: dict[str, str], mine: dict[str, object], shared: dict[str, object]) -> T:
    cells = {name: _parse(line[name], hint) for name, hint in (mine | shared).items()}
    provenance = Provenance(**{name: cells.pop(name) for name in shared})  # type: ignore[arg-type]
    return kind(**cells, provenance=provenance)  # type: ignore[arg-type]


def _parse(cell: str, hint: object) -> object:
    if isinstance(hint, types.UnionType):
        return float(cell) if cell else None
    if hint is bool:
        return {"True": True, "False": False}[cell]
    if hint is int:
        return int(cell)
    return float(cell) if hint is float else cell
