"""Ranks agree in one module, whose functions say by their names that every rank must call them."""

from __future__ import annotations

import ast

from tests.architecture.source import ROOT, part_files

AGREEMENTS = "engine_integration/parallel/agree.py"


def test_nothing_but_the_agreements_calls_the_collective_of_a_group() -> None:
    calling = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in part_files("engine_integration")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Attribute) and call.attr == "all_gather" and ast.unparse(call.value) != "distributed"
    ]

    assert [place.partition(":")[0] for place in calling] == [AGREEMENTS], calling
