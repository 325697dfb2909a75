"""Trees as subjects: what is timed is done, and a slower tree says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.rows import Row
from benchmarks.subjects.our_tree import OurTree
from benchmarks.subjects.trees import Prompts
from benchmarks.tables import trees

SMALL = Prompts(folder="", objects=6, batch=2, page_tokens=16, prompt_tokens=128, shared_tokens=64, groups=2)


def test_prompts_share_the_start_with_their_group_alone() -> None:
    prompts = SMALL.prompts()

    assert {len(prompt) for prompt in prompts} == {128}
    assert prompts[0][:64] == prompts[2][:64] != prompts[1][:64]
    assert prompts == SMALL.prompts()


def test_an_inserted_prompt_is_matched_until_it_is_evicted() -> None:
    tree = OurTree()
    tree.prepare(SMALL)

    tree.run("insert")
    inserted = tree.wrong_objects()
    tree.run("evict")

    assert (inserted, tree.wrong_objects()) == (0, 6)


@pytest.mark.parametrize(("share", "is_missed"), [(0.5, True), (2.0, False)])
def test_a_tree_slower_than_the_fastest_peer_has_missed(rows: list[Row], share: float, is_missed: bool) -> None:
    own = replace(
        rows[0],
        case="radix_tree",
        operation="match, pages of 16",
        subject="our_tree",
        share_of_raw=share,
        raw="sglang_tree",
    )

    assert ("(missed)" in trees([own])) is is_missed
