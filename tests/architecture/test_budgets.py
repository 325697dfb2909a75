"""Files, functions and parameter lists stay small enough to read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.source import PART_FOLDERS, ROOT, python_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_FUNCTION_LINES_WANTED = 40
MAX_PARAMETERS = 7
PRODUCTION = [*PART_FOLDERS.values(), ROOT / "examples", ROOT / "benchmarks"]
EVERYTHING = [*PRODUCTION, ROOT / "tests"]


def functions_of(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.walk(ast.parse(path.read_text()))
    return [node for node in tree if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    start = function.lineno
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or start) - start + 1 - docstring


@pytest.mark.parametrize("folder", EVERYTHING, ids=lambda folder: folder.name)
def test_no_file_is_longer_than_a_few_screens(folder: Path) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files(folder)}

    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


@pytest.mark.parametrize("folder", EVERYTHING, ids=lambda folder: folder.name)
def test_no_function_is_longer_than_a_screen(folder: Path) -> None:
    limit = MAX_FUNCTION_LINES if folder.name == "tests" else MAX_FUNCTION_LINES_WANTED
    lengths = {
        f"{path.relative_to(ROOT)}:{function.name}": code_lines(function)
        for path in python_files(folder)
        for function in functions_of(path)
    }

    assert {name: length for name, length in lengths.items() if length > limit} == {}


@pytest.mark.parametrize("folder", PRODUCTION, ids=lambda folder: folder.name)
def test_no_function_takes_more_than_seven_parameters(folder: Path) -> None:
    counts = {
        f"{path.relative_to(ROOT)}:{function.name}": len(function.args.posonlyargs + function.args.args)
        + len(function.args.kwonlyargs)
        - (bool(function.args.args) and function.args.args[0].arg in {"self", "cls"})
        for path in python_files(folder)
        for function in functions_of(path)
    }

    assert {name: count for name, count in counts.items() if count > MAX_PARAMETERS} == {}
