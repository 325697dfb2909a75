"""Field selectors: what they select, and what is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from hicache_storage.engine_integration.consensus.selectors import Selector
from hicache_storage.errors import ConfigError


@dataclass
class Match:
    num_device: int = 3
    pages: list[int] = field(default_factory=lambda: [7, 8, 9])
    by_name: dict[str, list[int]] = field(default_factory=lambda: {"kv": [1, 2]})

    @property
    def broken(self) -> int:
        raise RuntimeError("never")


@pytest.mark.parametrize(
    ("source", "selected"),
    [
        ("match.num_device", "3"),
        ("match.pages", "[7, 8, 9]"),
        ("match.pages[0]", "7"),
        ("match.pages[-1]", "9"),
        ("len(match.pages)", "3"),
        ("match.by_name['kv'][1]", "2"),
        ('len(match.by_name["kv"])', "2"),
        ("match.pages[*]", "[7, 8, 9]"),
        ("matches[*].num_device", "[3, 4]"),
        ("matches[*].pages[*]", "[[7, 8, 9], []]"),
        ("matches[*].pages[-1]", "<IndexError>"),
        ("len(matches[*].num_device)", "2"),
        ("request_id", "'r'"),
    ],
)
def test_a_path_selects_attributes_items_and_lengths(source: str, selected: str) -> None:
    values = {"match": Match(), "matches": [Match(), Match(4, [])], "request_id": "r"}

    assert Selector.parse(source).text(values) == f"{source}={selected}"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "1",
        ".id",
        "request.",
        "request..id",
        "request[",
        "request[x]",
        "request[**]",
        "[*].id",
        "request[1:2]",
        "request[1e3]",
        "request['a\\'b']",
        "request.id()",
        "len(len(pages))",
        "len(pages",
        "len(pages).x",
        "max(pages)",
        "pages + pages",
        "request.__class__",
        "__import__('os')",
        "request.id; x",
        "request id",
        "request\n.id",
        "request['\0']",
        "request[" + "9" * 5000 + "]",
    ],
)
def test_what_is_no_path_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="no field selector"):
        Selector.parse(source)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("match.absent", "AttributeError"),
        ("match.pages[9]", "IndexError"),
        ("match.by_name['no']", "KeyError"),
        ("match.num_device[0]", "TypeError"),
        ("len(match)", "TypeError"),
        ("match.broken", "RuntimeError"),
    ],
)
def test_a_path_that_does_not_fit_the_value_is_a_text_that_says_so(source: str, error: str) -> None:
    assert Selector.parse(source).text({"match": Match()}) == f"{source}=<{error}>"


class Moving(dict[str, int]):
    """Another thread changes it whenever it is looked at."""

    def items(self) -> NoReturn:
        raise RuntimeError("dictionary changed size during iteration")


@pytest.mark.parametrize(
    ("value", "error"), [(Moving(), "RuntimeError"), (10**5000, "ValueError")], ids=["moving", "too long"]
)
def test_a_value_that_has_no_text_is_a_text_that_says_so(value: object, error: str) -> None:
    assert Selector.parse("value").text({"value": value}) == f"value=<{error}>"


def test_only_ascii_comes_out() -> None:
    assert Selector.parse("names['ü']").text({"names": {"ü": "ß"}}) == "names['\\xfc']='\\xdf'"


def test_an_iterator_is_not_used_up_for_its_items() -> None:
    items = iter([1, 2])

    assert Selector.parse("items[*]").text({"items": items}) == "items[*]=<TypeError>"
    assert next(items) == 1
