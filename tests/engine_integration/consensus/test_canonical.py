"""Canonical texts: equal where values mean the same, short, and without addresses."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath

import msgspec
import numpy as np
import pytest

from hicache_storage.config import Secret
from hicache_storage.engine_integration.consensus.canonical import canonical
from hicache_storage.engine_integration.consensus.entry import MAX_VALUE_CHARS


class Plain:
    pass


class Tier(Enum):
    DEVICE = 1


class Message(msgspec.Struct):
    request_id: str
    tokens: list[int]


@dataclass
class Request:
    request_id: str
    stopped: threading.Event = field(default_factory=threading.Event)
    started_s: float = field(default=0.0, compare=False)
    token: str = field(default="t", repr=False)


@dataclass
class Link:
    other: Link | None = None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (-3, "-3"),
        (np.int64(5), "5"),
        (np.float64(0.5), "0.5"),
        (float("nan"), "nan"),
        ("a\n\0ü", r"'a\n\x00\xfc'"),
        (b"\x01\xff", "<2 bytes 01ff>"),
        (b"", "<0 bytes>"),
        (bytearray(b"\x01"), "<1 bytes 01>"),
        (memoryview(b"\x01"), "<1 bytes 01>"),
        (array("H", [1]), "[1]"),
        ([1, [2], "x"], "[1, [2], 'x']"),
        (deque([1, 2]), "[1, 2]"),
        ((1, None), "(1, None)"),
        ({"b", "a"}, "{'a', 'b'}"),
        ({"b": 1, "a": {2}}, "{'a': {2}, 'b': 1}"),
        (range(2, 5), "range(2, 5)"),
        (PurePath("a/b"), "a/b"),
        (Tier.DEVICE, "Tier.DEVICE"),
        (Message("r", [1, 2]), "Message(request_id='r', tokens=[1, 2])"),
        (Plain(), "<Plain>"),
        (Plain, "<type>"),
        (len, "<builtin_function_or_method>"),
        (Secret("hush"), "<Secret>"),
    ],
)
def test_a_value_has_one_text(value: object, text: str) -> None:
    assert canonical(value) == text


def test_fields_that_equality_or_repr_leaves_out_are_left_out() -> None:
    assert canonical(Request("r", started_s=1.5)) == "Request(request_id='r', stopped=<Event>)"


def test_objects_whose_repr_holds_an_address_have_equal_texts() -> None:
    ours, theirs = ([Plain(), {"lock": threading.Lock()}, Request("r")] for _ in range(2))

    assert repr(ours) != repr(theirs)
    assert canonical(ours) == canonical(theirs)


def test_a_cycle_ends() -> None:
    link = Link()
    link.other = link

    assert canonical(link).endswith("<more>" + ")" * 9)


def test_a_value_of_many_parts_ends() -> None:
    wide: list[object] = []
    for _ in range(12):
        wide = [wide] * 12

    assert len(canonical(wide)) <= MAX_VALUE_CHARS


@pytest.mark.parametrize(
    "make",
    [
        lambda last: [*range(5000), last],
        lambda last: "x" * 5000 + last,
        lambda last: b"x" * 5000 + last.encode(),
        lambda last: array("q", [*range(5000), ord(last)]),
    ],
)
def test_what_is_cut_off_still_counts(make: Callable[[str], object]) -> None:
    texts = {canonical(make(last)) for last in ("a", "b", "a")}

    assert len(texts) == 2
    assert all(len(text) <= MAX_VALUE_CHARS for text in texts)
