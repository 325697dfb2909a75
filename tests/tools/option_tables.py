"""Fills the option tables of docs/operations.md from the options themselves; with ``--check`` only says whether they are right."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

from hicache_storage.backends.file.options import FileOptions
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.middleware.fault_plan import FaultOptions
from hicache_storage.middleware.options import MiddlewareOptions

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
TABLES: dict[str, type] = {
    "file": FileOptions,
    "middleware": MiddlewareOptions,
    "faults": FaultOptions,
    "tiers": TierOptions,
}
_MARKED = re.compile(r"(<!-- options:(\w+) -->\n).*?(<!-- /options -->)", re.DOTALL)


def table_of(options: type) -> str:
    """Return one row for each option: its name and aliases, its default, what it means."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(options):
        names = ", ".join(f"`{name}`" for name in (field.name, *field.metadata["aliases"]))
        rows.append(f"| {names} | {_shown(field)} | {field.metadata['doc']} |")
    return "\n".join(rows) + "\n"


def filled(text: str) -> str:
    """Return *text* with every marked table made anew."""
    return _MARKED.sub(lambda match: match[1] + table_of(TABLES[match[2]]) + match[3], text)


def _shown(field: dataclasses.Field[object]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if isinstance(field.default, Path):
        return "a folder of the user's cache"
    if field.default is None:
        return "off"
    shown = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    return ", ".join(map(str, field.default)) if isinstance(field.default, tuple) else shown


if __name__ == "__main__":
    page = PAGE.read_text()
    if "--check" in sys.argv:
        sys.exit(0 if filled(page) == page else "docs/operations.md: run python -m tests.tools.option_tables")
    PAGE.write_text(filled(page))
