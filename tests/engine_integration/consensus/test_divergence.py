"""What ranks tell each other of an entry, and what is told of one that differs."""

from __future__ import annotations

from hicache_storage.engine_integration.consensus import Differs, Divergence
from hicache_storage.engine_integration.consensus.entry import MAX_NAME_CHARS, MAX_VALUE_CHARS, Entry, Rank


def test_an_entry_of_any_length_arrives_whole() -> None:
    for event, name, value in (
        ("call", "n" * MAX_NAME_CHARS, "v" * MAX_VALUE_CHARS),
        ("return", "f", ""),
        ("end", "", ""),
    ):
        entry = Entry(3, event, name, value, 0.0)  # type: ignore[arg-type]  # mypy takes them for text

        assert Entry.unpacked(3, entry.packed()) == entry


def test_a_message_has_each_side_once_the_most_frequent_first() -> None:
    entries: dict[Rank, Entry | None] = {
        Rank(0, 0): Entry(4, "return", "f", "result=2", 0.0),
        Rank(0, 1): Entry(4, "return", "f", "result=1", 0.0),
        Rank(1, 0): Entry(4, "return", "f", "result=1", 0.0),
        Rank(1, 1): None,
    }
    before = [Entry(3, "call", "f", "", 0.0)]

    lines = str(Divergence(4, Differs.RESULTS, entries, before)).splitlines()

    assert lines[0] == "Found rank divergence at entry 4: results differ"
    assert lines[1:4] == [
        "  pp0/tp1 pp1/tp0: f returns result=1",
        "  pp0/tp0: f returns result=2",
        "  pp1/tp1: nothing",
    ]
    assert lines[-1] == "    3 f()"
