"""Engines of any topology, one store: the next turn hits what another topology wrote, and says the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.messages import Generate
from hicache_storage.engine_integration.reference_engine.random_shape import RandomShape
from hicache_storage.errors import LayoutError
from hicache_storage.layout import ObjectKey
from hicache_storage.registry import open_store
from tests.engine_integration.reference_engine.asking import EAGER, GQA, MLA, Answer, ask, config, counters, prompt
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine

HOST_BYTES = replace(EAGER, host_nbytes=100 * 3 * 2 * 4 * 16 * 4)
"""A hundred pages of the longer stage: 3 layers of K and V of 4 tokens, 16 elements of 4 bytes each."""

TURN = Generate("first", prompt(1, 29), 8)
"""29 tokens and 7 of 8 new ones have KV: 9 full pages."""


def fill(settings: EngineConfig) -> tuple[Answer, dict[str, int]]:
    """Serve the first turn; return the answer and what was counted once all of it was stored."""
    with ThreadEngine(settings) as engine:
        answer = ask(engine, TURN)["first"]
        counted = counters(engine)
        while counted.get("pages_written_back", 0) < 9 * len(engine.ranks):
            counted = counters(engine)
    return answer, counted


def next_turn(said: Answer) -> Generate:
    return Generate("next", (*TURN.tokens, *said.tokens, 8, 9), 6)


def without_cache(shape: RandomShape, request: Generate) -> list[int]:
    with ThreadEngine(config(shape, cache="off")) as engine:
        return ask(engine, request)[request.request_id].tokens


def objects_in(folder: Path) -> Counter[str]:
    """Return how many objects each chunk of the pages in *folder* has, by the end of their keys."""
    store = open_store(f"file://{folder}")
    try:
        keys = [info.key for info in store.list_keys("") if "_L" in info.key]
    finally:
        store.close()
    return Counter(ObjectKey.parse(key).chunk.suffix for key in keys)


@pytest.mark.parametrize(
    ("writer", "reader", "grid"),
    [
        ("tp4pp2", "tp2pp1", (2, 1)),
        ("tp2pp1", "tp4pp2", (2, 1)),
        ("tp1pp1", "tp4pp1", (4, 1)),
        ("tp1pp1", "tp1pp4", (1, 4)),
        ("tp8pp1", "tp1pp2", (2, 1)),
        ("tp2pp2:3+1", "tp1pp1", (1, 2)),
    ],
)
def test_the_next_turn_hits_what_another_topology_wrote(
    tmp_path: Path, writer: str, reader: str, grid: tuple[int, int]
) -> None:
    layers, heads = grid
    first, _ = fill(config(GQA, folder=tmp_path, topology=writer, layer_partition=layers, head_partition=heads))
    request = next_turn(first)

    settings = config(GQA, folder=tmp_path, topology=reader, layer_partition=layers, head_partition=heads)
    with ThreadEngine(settings) as engine:
        answer = ask(engine, request)["next"]

    assert answer.cached == (0, 0, 36)
    assert answer.tokens == without_cache(GQA, request)


def test_stages_finer_than_the_grid_read_and_do_not_write(tmp_path: Path) -> None:
    first, _ = fill(config(GQA, folder=tmp_path, layer_partition=4, head_partition=4))
    before = objects_in(tmp_path)
    request = next_turn(first)

    settings = config(GQA, folder=tmp_path, topology="tp1pp4", layer_partition=4, head_partition=4)
    with ThreadEngine(settings) as engine:
        answer = ask(engine, request)["next"]
        ask(engine, Generate("more", prompt(2), 3))

    assert answer.cached == (0, 0, 36)
    assert answer.tokens == without_cache(GQA, request)
    assert objects_in(tmp_path) == before


@pytest.mark.parametrize(("writer", "reader"), [("tp4pp1", "tp1pp1"), ("tp1pp2", "tp4pp1"), ("tp2pp2", "tp2pp1")])
def test_latent_rows_are_shared_by_all_topologies(tmp_path: Path, writer: str, reader: str) -> None:
    first, counted = fill(config(MLA, folder=tmp_path, topology=writer, layer_partition=2))
    request = next_turn(first)

    with ThreadEngine(config(MLA, folder=tmp_path, topology=reader, layer_partition=2)) as engine:
        answer = ask(engine, request)["next"]

    assert answer.cached == (0, 0, 36)
    assert answer.tokens == without_cache(MLA, request)
    assert counted["objects_stored"] == 9 * 2


@pytest.mark.parametrize(
    ("shape", "topology", "chunks"),
    [
        (GQA, "tp4pp2", [f"L{layers}_H{head}" for layers in ("0-2", "2-4") for head in range(4)]),
        (GQA, "tp8pp1", [f"L{layers}_H{head}" for layers in ("0-2", "2-4") for head in range(4)]),
        (MLA, "tp4pp2", ["L0-2", "L2-4"]),
    ],
)
def test_every_object_has_exactly_one_writer(
    tmp_path: Path, shape: RandomShape, topology: str, chunks: list[str]
) -> None:
    heads = {"head_partition": 1} if shape is GQA else {}

    _, counted = fill(config(shape, folder=tmp_path, topology=topology, layer_partition=2, **heads))

    assert objects_in(tmp_path) == dict.fromkeys(chunks, 9)
    assert counted["objects_stored"] == 9 * len(chunks)
    assert "pages_already_there" not in counted


def test_rank_suffix_keys_serve_the_same_topology_alone(tmp_path: Path) -> None:
    def settings(topology: str) -> EngineConfig:
        return config(GQA, folder=tmp_path, topology=topology, key_scheme="rank-suffix")

    first, counted = fill(settings("tp2pp2"))
    request = next_turn(first)
    with ThreadEngine(settings("tp2pp2")) as same, ThreadEngine(settings("tp1pp1")) as other:
        hit, miss = ask(same, request)["next"], ask(other, request)["next"]

    assert counted["objects_stored"] == 9 * 4
    assert (hit.cached, miss.cached) == ((0, 0, 36), (0, 0, 0))
    assert hit.tokens == miss.tokens == without_cache(GQA, request)


def test_stages_with_unequal_layers_have_equally_many_host_pages() -> None:
    with ThreadEngine(config(GQA, topology="tp1pp2:3+1", tiers=HOST_BYTES)) as engine:
        pages = [rank.tiers.host.capacity for rank in engine.ranks if rank is not None]

    assert pages == [100, 100]


def test_more_ranks_than_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(LayoutError, match="4 KV heads over 3"):
        ThreadEngine(config(GQA, topology="tp3pp1"))
