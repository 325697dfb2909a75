"""Every backend under engines of different topologies: the next turn hits what another topology wrote, and says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.messages import Flush, Generate
from hicache_storage.engine_integration.reference_engine.random_shape import RandomShape
from tests.engine_integration.reference_engine.asking import (
    GQA,
    MLA,
    Answer,
    Talks,
    answered,
    ask,
    config,
    counters,
    prompt,
)
from tests.engine_integration.reference_engine.places import BACKENDS, PLUGINS, Place, place_on
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine

pytest_plugins = PLUGINS

ARTICLE = RandomShape(
    num_layers=60, num_heads=8, num_kv_heads=8, head_dim=2, mlp_size=16, vocab_size=97, tied_embeddings=False
)
"""The article's model, as thin as it can be: 60 layers, 8 KV heads."""

TURN = Generate("first", prompt(1, 29), 8)
PAGES = 9
"""29 tokens and 7 of 8 new ones have KV."""


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_on(request.param, request, tmp_path / "kv")


def settings(place: Place, shape: RandomShape, topology: str, layers: int, heads: int | None) -> EngineConfig:
    return config(
        shape,
        store=place.target,
        topology=topology,
        layer_partition=layers,
        head_partition=heads,
        chunk_tokens=64,
    )


def fill(engine: Talks) -> tuple[Answer, dict[str, int]]:
    """Serve the first turn; return the answer and what was counted once all of it was written."""
    answer = ask(engine, TURN)["first"]
    answered(engine, Flush(1))
    return answer, counters(engine)


def next_turn(said: Answer) -> Generate:
    return Generate("next", (*TURN.tokens, *said.tokens, 8, 9), 6)


def without_cache(shape: RandomShape, *requests: Generate) -> list[list[int]]:
    with ThreadEngine(config(shape, cache="off", chunk_tokens=64)) as engine:
        return [ask(engine, request)[request.request_id].tokens for request in requests]


def assert_one_writer_for_each_object(place: Place, counted: dict[str, int], chunks: list[str]) -> None:
    assert place.chunks() == dict.fromkeys(chunks, PAGES)
    assert counted["objects_stored"] == PAGES * len(chunks)
    assert "pages_already_there" not in counted


def test_the_articles_figure_4_over_real_processes(place: Place) -> None:
    with EngineClient(settings(place, ARTICLE, "tp4pp2", 30, 2)) as engine:
        said, written = fill(engine)
    chunks = [f"L{layers}_H{head}" for layers in ("0-30", "30-60") for head in range(4)]
    assert_one_writer_for_each_object(place, written, chunks)

    request = next_turn(said)
    with EngineClient(settings(place, ARTICLE, "tp2pp1", 30, 2)) as engine:
        answer = ask(engine, request)["next"]
        read = counters(engine)

    assert answer.cached == (0, 0, PAGES * 4)
    assert [said.tokens, answer.tokens] == without_cache(ARTICLE, TURN, request)
    assert (read["objects_read"], read["pages_hit"]) == (PAGES * 2 * 4, PAGES * 2)


@pytest.mark.parametrize(
    ("shape", "writer", "reader", "grid", "chunks"),
    [
        pytest.param(GQA, "tp1pp1", "tp4pp1", (4, 1), [f"L0-4_H{head}" for head in range(4)], id="tp1-tp4"),
        pytest.param(GQA, "tp1pp1", "tp1pp4", (4, 4), ["L0-4_H0"], id="finer-than-the-grid"),
        pytest.param(MLA, "tp4pp1", "tp1pp1", (4, None), ["L0-4"], id="latent-tp4-tp1"),
    ],
)
def test_the_next_turn_hits_what_another_topology_wrote(
    place: Place, shape: RandomShape, writer: str, reader: str, grid: tuple[int, int | None], chunks: list[str]
) -> None:
    with ThreadEngine(settings(place, shape, writer, *grid)) as engine:
        said, written = fill(engine)
    assert_one_writer_for_each_object(place, written, chunks)

    request = next_turn(said)
    with ThreadEngine(settings(place, shape, reader, *grid)) as engine:
        answer = ask(engine, request)["next"]

    assert answer.cached == (0, 0, PAGES * 4)
    assert [answer.tokens] == without_cache(shape, request)
