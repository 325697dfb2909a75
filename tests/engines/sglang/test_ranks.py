"""Deployments of several ranks on one store: stock SGLang's trees and gloo groups, one process a rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.sglang.ranks import on_every_rank
from tests.engines.sglang.stack import Model, Place, Stack, Storage
from tests.engines.sglang.storages import DAMAGES, objects, ours

MHA, MLA = Model(layers=4, heads=4), Model(layers=4, latent=72)
PAGES = 6
FLEET = {"topologies": "tp4pp2,tp2pp1,tp1pp1", "num_layers": 4, "total_kv_heads": 4}


def writes(model: Model, storage: Storage) -> Callable[[Place], list[str]]:
    def body(place: Place) -> list[str]:
        rank = Stack(model, storage, place)
        try:
            tokens = rank.tokens(PAGES)
            return rank.back_up(rank.compute(tokens, model.kv(len(tokens))))
        finally:
            rank.close()

    return body


def reads(model: Model, storage: Storage) -> Callable[[Place], tuple[int, bool, bool]]:
    """Return what each rank does: pages that came, whether they are right, whether its threads live."""

    def body(place: Place) -> tuple[int, bool, bool]:
        rank = Stack(model, storage, place)
        try:
            tokens = rank.tokens(PAGES)
            loaded = rank.prefetch(tokens)
            is_right = not loaded or rank.holds(tokens[:loaded], model.kv(len(tokens))[:, :, :loaded])
            return loaded // model.page_tokens, is_right, rank.threads_are_alive()
        finally:
            rank.close()

    return body


@pytest.mark.parametrize(
    ("writer", "reader"),
    [((4, 1), (2, 1)), ((4, 2), (2, 1)), ((2, 1), (4, 2)), ((2, 2), (1, 1))],
    ids=lambda ranks: "tp{}pp{}".format(*ranks),
)
def test_a_topology_reads_what_another_wrote(tmp_path: Path, writer: tuple[int, int], reader: tuple[int, int]) -> None:
    (hashes, *_) = on_every_rank(*writer, writes(MHA, ours(tmp_path, options=FLEET)))
    assert [len(objects(tmp_path, page_hash)) for page_hash in hashes] == [2 * 4] * PAGES

    answers = on_every_rank(*reader, reads(MHA, ours(tmp_path, "page_first_direct", options=FLEET)))

    assert answers == [(PAGES, True, True)] * len(answers)


def test_ranks_finer_than_the_grid_read_their_part_of_its_objects(tmp_path: Path) -> None:
    coarse = {**FLEET, "topologies": "tp1pp1"}
    on_every_rank(1, 1, writes(MHA, ours(tmp_path, options=coarse)))

    answers = on_every_rank(2, 2, reads(MHA, ours(tmp_path, options={**coarse, "read_only": True})))

    assert answers == [(PAGES, True, True)] * 4


def test_a_writer_that_does_not_tile_the_grid_is_refused_with_both_numbers(tmp_path: Path) -> None:
    coarse = {**FLEET, "topologies": "tp1pp1"}

    with pytest.raises(AssertionError, match=r"heads \[0, 2\).*4"):
        on_every_rank(2, 1, writes(MHA, ours(tmp_path, options=coarse)))


def test_mla_is_written_once_and_read_by_any_number_of_ranks(tmp_path: Path) -> None:
    fleet = {"topologies": "tp4pp2,tp2pp1", "num_layers": 4}
    (hashes, *_) = on_every_rank(4, 2, writes(MLA, ours(tmp_path, options=fleet)))
    assert [len(objects(tmp_path, page_hash)) for page_hash in hashes] == [2] * PAGES

    answers = on_every_rank(2, 1, reads(MLA, ours(tmp_path, options=fleet)))

    assert answers == [(PAGES, True, True)] * 2


def test_one_rank_with_a_damaged_object_ends_the_prefix_of_all(tmp_path: Path) -> None:
    (hashes, *_) = on_every_rank(2, 2, writes(MHA, ours(tmp_path, options=FLEET)))
    victim, other = (objects(tmp_path, hashes[page])[-1] for page in (2, 3))
    DAMAGES["bit flip"](victim, other)

    answers = on_every_rank(2, 2, reads(MHA, ours(tmp_path, options=FLEET)))

    assert answers == [(2, True, True)] * 4


def test_ranks_with_failures_of_their_own_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_every_rank(2, 2, writes(MHA, ours(tmp_path, options=FLEET)))
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.02")
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.2")

    answers = on_every_rank(2, 2, reads(MHA, ours(tmp_path, options=FLEET)))

    assert len({pages for pages, _, _ in answers}) == 1
    assert all(is_right and is_alive for _, is_right, is_alive in answers)
