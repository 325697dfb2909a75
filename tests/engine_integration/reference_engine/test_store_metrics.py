"""What the layer `metrics` around an engine's store counted, in the engine's report."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from hicache_storage.engine_integration.reference_engine.messages import Attach, Detach, Flush
from tests.engine_integration.reference_engine.asking import answered, ask, config, counters, turns
from tests.engine_integration.reference_engine.held_store import HeldStore
from tests.engine_integration.reference_engine.places import Place, file_place
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine

RANKS = 2
METRICS = {"metrics": True}
STORED = "store_metrics.part.{}.requests.write.stored.{}"


def parts(*places: Place) -> list[dict[str, object]]:
    """Return what a tiered store's option ``stores`` is to be, with the layer around each of *places*."""
    return [{"backend": place.backend, **place.options, "middleware": METRICS} for place in places]


def test_it_is_that_of_all_ranks_and_of_all_stores_since_the_start(tmp_path: Path) -> None:
    places = [file_place(tmp_path / name, middleware={"metrics": True}) for name in ("a", "b")]
    stored, moved = "store_metrics.requests.write.stored.file", "store_metrics.bytes.write.file"
    held, reports = list[int](), list[dict[str, int]]()

    with ThreadEngine(config(topology="tp2pp1")) as engine:
        for serial, place in enumerate(places):
            assert answered(engine, Attach(1, place.backend, place.target.extra_config)).error is None
            ask(engine, *turns([serial]))
            assert answered(engine, Flush(2)).error is None
            reports.append(counters(engine))
            assert answered(engine, Detach(3)).error is None
            reports.append(counters(engine))
            with place.open() as store:
                held.append(len(list(store.list_keys())))

    # Of several ranks that describe a store's namespace at once, each may be told that it stored it.
    more = [report[stored] - count for report, count in zip(reports, accumulate([held[0], 0, held[1], 0]), strict=True)]
    assert all(0 <= one < RANKS * len(places) for one in more)
    assert (more[0], more[2]) == (more[1], more[3])
    assert reports[0][moved] > 0
    assert all(count <= reports[3][name] for name, count in reports[1].items() if name.startswith("store_metrics"))


def test_that_of_the_parts_of_a_store_is_there_by_part(tmp_path: Path) -> None:
    places = [file_place(tmp_path / name) for name in ("a", "b")]
    tiered = Place("tiered", {"stores": parts(*places)})

    with ThreadEngine(config(topology="tp2pp1", store=tiered.target)) as engine:
        ask(engine, *turns([1]))
        assert answered(engine, Flush(1)).error is None
        report = counters(engine)

    for number, place in enumerate(places):
        with place.open() as store:
            more = report[STORED.format(number, "file")] - len(list(store.list_keys()))
        assert 0 <= more < RANKS
    assert not any(name.endswith(".tiered") for name in report)


def test_copies_that_end_while_a_store_is_given_up_are_counted(tmp_path: Path) -> None:
    held = Place(f"{HeldStore.__module__}:{HeldStore.__name__}", {})
    options = {"stores": parts(file_place(tmp_path), held), "write": "first_then_background", "drain_s": 60}

    with ThreadEngine(config(store=Place("tiered", options).target)) as engine:
        ask(engine, *turns([1]))
        assert answered(engine, Flush(1)).error is None
        assert answered(engine, Detach(2)).error is None
        report = counters(engine)

    assert report[STORED.format(1, "memory")] == report[STORED.format(0, "file")] > 0


def test_without_the_layer_nothing_is_counted(tmp_path: Path) -> None:
    with ThreadEngine(config(folder=tmp_path)) as engine:
        ask(engine, *turns([1]))
        report = counters(engine)

    assert not any(name.startswith("store_metrics") for name in report)
