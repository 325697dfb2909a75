"""Replays: exactly what can be reused is reused, books stay exact, and every byte that is served is right."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_storage.engine_integration.options import (
    EVICTION_POLICIES,
    WRITE_POLICIES,
    EvictionPolicy,
    TierOptions,
    WritePolicy,
)
from hicache_storage.engine_integration.replay import KeyScheme, Replay, ReplayOptions, Trace
from hicache_storage.engine_integration.replay.coded import coded_page
from hicache_storage.errors import ConfigError, LayoutError
from hicache_storage.layout import KVShape, ShardLayout, Topology
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.replay.traces import (
    EAGER,
    FLEET,
    SHAPE,
    SLICE,
    replayed,
    reusable_blocks,
    tokens,
    write_trace,
)

SMALL = KVShape.mha(num_layers=8, num_kv_heads=8, head_dim=1, dtype="uint8", page_tokens=128)
SMALL_MLA = KVShape.mla(num_layers=8, latent_dim=2, dtype="uint8", page_tokens=128)
BEST = 512 * reusable_blocks(SLICE)


def shape(page_tokens: int) -> KVShape:
    return replace(SHAPE, page_tokens=page_tokens)


def head(tmp_path: Path, requests: int) -> Path:
    """Return a trace of the first requests of the slice."""
    path = tmp_path / "head.jsonl"
    path.write_text("".join(SLICE.read_text().splitlines(keepends=True)[:requests]))
    return path


@pytest.mark.parametrize("page_tokens", [64, 512])
def test_one_instance_with_unbounded_tiers_reuses_all_that_can_be_reused(page_tokens: int) -> None:
    report = replayed(ReplayOptions(shape=shape(page_tokens)))

    assert report.total.cached.device == report.total.cached.total == report.reusable_tokens == BEST


def test_four_instances_of_different_topology_reuse_as_much_as_one() -> None:
    report = replayed(ReplayOptions(shape=SHAPE, topologies=FLEET))

    assert report.total.cached.total == BEST
    assert report.total.cached.store > 0
    assert [one.num_requests for one in report.instances] == [85, 85, 84, 84]


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_small_device_and_host_lose_nothing_with_an_unbounded_store(eviction: EvictionPolicy) -> None:
    tiers = replace(EAGER, eviction_policy=eviction, host_eviction_policy=eviction)
    options = ReplayOptions(shape=SHAPE, topologies=FLEET, tiers=tiers, device=tokens(30_000), host=tokens(60_000))

    report = replayed(options)

    assert report.total.cached.total == BEST
    assert min(report.total.evicted.values()) > 0


@pytest.mark.parametrize(("write_policy", "concurrency"), [*((one, 1) for one in WRITE_POLICIES), ("write_through", 3)])
def test_with_bounded_tiers_books_stay_exact_and_hits_below_the_bound(
    write_policy: WritePolicy, concurrency: int
) -> None:
    options = ReplayOptions(
        shape=SHAPE,
        topologies=FLEET[:2],
        tiers=TierOptions(write_policy=write_policy),
        device=tokens(30_000),
        host=tokens(50_000),
        store=tokens(300_000),
        concurrency=concurrency,
        check_every=50,
    )

    report = replayed(options)

    assert report.total.num_requests == 338
    assert 0 < report.total.cached.total < report.reusable_tokens
    assert report.store_pages is not None
    assert report.store_pages <= 300_000 // 64


def test_what_is_stored_is_prefixes_of_prompts_and_each_page_once() -> None:
    with Replay(Trace(SLICE), ReplayOptions(shape=SHAPE, topologies=FLEET)) as replay:
        served = list(replay.run())
        report = replay.report()

    computed_pages = sum(one.prompt_tokens // 64 - (one.reusable // 64) for one in served)
    assert report.store_pages == computed_pages
    assert report.total.moved["host -> store"].nbytes == computed_pages * SHAPE.page_nbytes


@pytest.mark.parametrize("kv", [SMALL, SMALL_MLA], ids=["mha", "mla"])
def test_every_page_that_four_topologies_serve_each_other_is_right(tmp_path: Path, kv: KVShape) -> None:
    path = head(tmp_path, 45)
    options = ReplayOptions(shape=kv, topologies=FLEET, tiers=EAGER, device=tokens(25_000), host=tokens(50_000))

    report = replayed(options, path, backend=MemoryStore())

    assert report.total.cached.total == 512 * reusable_blocks(path)
    assert report.total.num_judged > 0
    assert report.total.num_wrong == 0
    assert min(report.total.cached.host, report.total.cached.store) > 0


def test_a_page_with_other_bytes_than_its_own_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: set[str] = set()

    def wrong_at_first(layout: ShardLayout, page_hash: str) -> bytes:
        page = coded_page(layout, page_hash)
        if page_hash in computed:
            return page
        computed.add(page_hash)
        return page[:-1] + bytes([page[-1] ^ 1])

    monkeypatch.setattr("hicache_storage.engine_integration.replay.coded.coded_page", wrong_at_first)
    path = write_trace(tmp_path / "t", (600, [1, 2]), (600, [1, 3]))

    report = replayed(ReplayOptions(shape=SMALL), path, backend=MemoryStore())

    assert (report.total.num_judged, report.total.num_wrong) == (4, 4)


def test_a_replay_leaves_nothing_in_the_store_and_no_thread(tmp_path: Path) -> None:
    store = MemoryStore()
    store.write("somebody else's", [b"1"])
    before = set(threading.enumerate())

    replayed(ReplayOptions(shape=SMALL, topologies=FLEET, key_scheme="rank-suffix"), head(tmp_path, 8), backend=store)

    assert [info.key for info in store.list_keys("")] == ["somebody else's"]
    assert [thread.name for thread in set(threading.enumerate()) - before] == []


@pytest.mark.parametrize("backend", [None, MemoryStore()])
def test_ranks_in_keys_keep_topologies_apart(tmp_path: Path, backend: MemoryStore | None) -> None:
    path = write_trace(tmp_path / "t", *[(600, [1, 10 + number]) for number in range(4)])
    topologies = (Topology(2, 1), Topology(1, 2))

    def hits(scheme: KeyScheme) -> int:
        options = ReplayOptions(shape=SMALL, topologies=topologies, key_scheme=scheme)
        return replayed(options, path, backend=backend).total.cached.total

    assert hits("unified") == 3 * 512
    assert hits("rank-suffix") == 2 * 512


def test_a_prompt_longer_than_the_device_is_refused_and_nothing_is_held(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t", (600, [1, 2]), (6000, [1, *range(20, 31)]), (600, [1, 3]))

    report = replayed(ReplayOptions(shape=SHAPE, device=tokens(2048), check_every=1), path)

    assert (report.total.num_requests, report.total.num_refused) == (3, 1)
    assert report.total.prompt_tokens == 1200
    assert report.total.cached.device == 512


def test_a_prompt_that_is_known_to_its_end_computes_one_page(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t", (1024, [1, 2]), (1024, [1, 2]))

    report = replayed(ReplayOptions(shape=SHAPE), path)

    assert report.total.cached.total == report.reusable_tokens == 1024 - 64


def test_token_ids_are_shared_page_by_page(tmp_path: Path) -> None:
    path = tmp_path / "t"
    prompts = [list(range(300)), list(range(200)) + [9] * 100, []]
    path.write_text("".join(json.dumps({"token_ids": prompt}) + "\n" for prompt in prompts))

    report = replayed(ReplayOptions(shape=SHAPE), path)

    assert report.total.cached.total == report.reusable_tokens == 192


def test_requests_of_different_scopes_share_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    scopes: list[dict[str, str]] = [{}, {"lora_id": "a"}, {"cache_salt": "b"}, {}, {"lora_id": "a"}]
    path.write_text("".join(json.dumps({"token_ids": list(range(250)), **scope}) + "\n" for scope in scopes))
    options = ReplayOptions(shape=replace(SMALL, page_tokens=64), topologies=[Topology()] * 2, tiers=EAGER)

    report = replayed(options, path, backend=MemoryStore())

    assert report.total.cached.total == report.reusable_tokens == 2 * 192
    assert report.total.num_judged > report.total.num_wrong == 0


@pytest.mark.parametrize(("store_tokens_per_s", "read", "declined"), [(1001, 3, 0), (999, 1, 2)])
def test_a_fetch_slower_than_prefill_is_left_out_once_its_speed_is_known(
    tmp_path: Path, store_tokens_per_s: float, read: int, declined: int
) -> None:
    prompts = [range(start, start + 5) for start in (10, 20, 30) for _ in range(2)]
    path = write_trace(tmp_path / "t", *[(2100, ids) for ids in prompts])
    options = ReplayOptions(
        shape=SHAPE,
        topologies=[Topology()] * 2,
        tiers=TierOptions(fetch_or_recompute=True, prefill_tokens_per_s=1000),
        store_tokens_per_s=store_tokens_per_s,
    )

    prefetches = replayed(options, path).total.prefetches

    assert prefetches["read"] == read
    assert prefetches.get("declined.slower_than_prefill", 0) == declined


def test_a_replay_is_the_same_every_time(tmp_path: Path) -> None:
    path = head(tmp_path, 100)
    options = ReplayOptions(shape=SHAPE, topologies=FLEET[:2], device=tokens(30_000), host=tokens(60_000))

    assert replayed(options, path) == replayed(options, path)


def test_coded_kv_differs_in_every_cell_and_agrees_between_topologies() -> None:
    page_hash = hashlib.sha256(b"prefix").hexdigest()
    whole = ReplayOptions(shape=SMALL, topologies=FLEET)
    (layout, _) = whole.layouts(FLEET[0])[0]
    cells = set()
    for topology in FLEET:
        for one, _ in whole.layouts(topology):
            page, step = coded_page(one, page_hash), layout.cell_nbytes
            assert len(page) == one.page_nbytes
            cells |= {page[start : start + step] for start in range(0, len(page), step)}

    assert len(cells) == 8 * 8


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tiers": TierOptions(host_memory_fraction=0.5)}, "real machine"),
        ({"tiers": TierOptions(host_nbytes=1 << 30), "host": tokens(1000)}, "give one of them"),
        ({"tiers": TierOptions(host_ratio=2.0)}, "give the device's size"),
        ({"topologies": [Topology(3, 1)]}, "cannot divide 8 KV heads"),
    ],
)
def test_options_that_do_not_fit_are_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises((ConfigError, LayoutError), match=reason):
        ReplayOptions(shape=SHAPE, **changes)  # type: ignore[arg-type]


def test_the_host_has_the_size_that_the_options_name() -> None:
    summary = Trace(SLICE).summary
    by_bytes = ReplayOptions(shape=SHAPE, tiers=TierOptions(host_nbytes=10 * SHAPE.page_nbytes))
    by_ratio = ReplayOptions(shape=SHAPE, device=tokens(6400), tiers=TierOptions(host_ratio=2.5))

    assert by_bytes.host_pages(summary, [SHAPE.page_nbytes]) == 10
    assert by_bytes.host_pages(summary, [SHAPE.page_nbytes // 2] * 2) == 20
    assert by_ratio.host_pages(summary, [SHAPE.page_nbytes]) == 250


def test_a_tier_is_never_larger_than_the_trace_can_fill() -> None:
    summary = Trace(SLICE).summary
    huge = ReplayOptions(shape=SHAPE, device=tokens(10**15), host=tokens(10**15))
    unbounded = ReplayOptions(shape=SHAPE)

    assert huge.device_pages(summary, 1) == unbounded.device_pages(summary, 1)
    assert huge.host_pages(summary, [1]) == unbounded.host_pages(summary, [1])
