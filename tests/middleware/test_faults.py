"""Faults by configuration: the same ones as in scripted tests, drawn from a seed, and never a wrong answer above them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hicache_storage import open_store
from hicache_storage.deadline import within
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.errors import ConfigError, StoreError, StoreUnavailable
from hicache_storage.layout import Grid, KVShape, Namespace, ShardLayout, Topology
from hicache_storage.middleware import FaultLayer, FaultOptions, MiddlewareOptions, wrap
from hicache_storage.middleware.fault_plan import KINDS, FaultPlan, parse_faults
from hicache_storage.registry import resolve_store
from hicache_storage.store import ObjectStore
from hicache_storage.testing.faults import Fault, FaultyStore
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import MISS, ObjectWrite, Outcome, RangeRead, Status, WriteResult
from tests.backends.redis.back_door import RedisService
from tests.engine_integration.page_store.coded import coded_page, hashes_of, poisoned_pages, views
from tests.middleware.guards import join_guards

pytest_plugins = ["tests.backends.redis.services"]

BODY = b"0123456789"
SCRIPTED = {"error": "raise", "lost_write": "drop"}
CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "write": lambda store: store.write("new", [BODY]),
    "write_many": lambda store: store.write_many([ObjectWrite("new", [BODY]), ObjectWrite("newer", [BODY])]),
    "read": lambda store: store.read_into("a", 2, [bytearray(3)]),
    "read_sized": lambda store: store.read_into("a", 2, [bytearray(3)], object_nbytes=len(BODY)),
    "read_to_end": lambda store: store.read_into("a", 2, [bytearray(8)]),
    "read_many": lambda store: store.read_many([RangeRead(key, 0, [bytearray(10)]) for key in ("a", "absent", "b")]),
    "stat": lambda store: store.stat("a"),
    "stat_many": lambda store: store.exists_many(["a", "absent"]),
    "stat_touched": lambda store: store.touch_many(["a", "absent"]),
    "delete": lambda store: store.delete("a"),
    "delete_many": lambda store: store.delete_many(["a", "absent"]),
    "quarantine": lambda store: store.quarantine("a"),
    "list": lambda store: sorted(info.key for info in store.list_keys("")),
}
STRUCK = [
    (call, kind) for call in CALLS for op, kinds in KINDS.items() if call.partition("_")[0] == op for kind in kinds
]


def filled() -> MemoryStore:
    store = MemoryStore()
    for key in ("a", "b"):
        store.write(key, [BODY])
    return store


def answer_of(store: ObjectStore, call: str) -> object:
    """Return what the caller sees: a result, or the class of each error."""
    try:
        answer = CALLS[call](store)
    except StoreError as error:
        return type(error)
    if isinstance(answer, list) and answer and isinstance(answer[0], Outcome):
        return [(outcome.status, type(outcome.error)) for outcome in answer]
    return answer


def options_of(kind: str, **more: object) -> FaultOptions:
    return parse_faults({f"{kind}_rate": 1, **more})


@pytest.mark.parametrize(("call", "kind"), STRUCK)
def test_a_fault_looks_like_the_scripted_one(call: str, kind: str) -> None:
    op = call.partition("_")[0]
    mine, scripted = filled(), filled()
    fault = Fault(op, SCRIPTED.get(kind, kind))  # type: ignore[arg-type]  # the names of both agree but for two

    seen = answer_of(FaultLayer(mine, options_of(kind, ops=(op,)), ""), call)

    assert seen == answer_of(FaultyStore(scripted, [fault]), call)
    assert sorted(info.key for info in mine.list_keys()) == sorted(info.key for info in scripted.list_keys())


@pytest.mark.parametrize("pieces", [[10], [3, 0, 7], [1] * 10], ids=str)
def test_a_corrupt_read_has_one_bit_flipped(pieces: list[int]) -> None:
    store = FaultLayer(filled(), options_of("corrupt"), "")
    flipped = set()
    for _ in range(100):
        targets = [bytearray(nbytes) for nbytes in pieces]
        assert store.read_into("a", 0, targets)
        flipped.add(int.from_bytes(b"".join(targets)) ^ int.from_bytes(BODY))

    assert all(bits.bit_count() == 1 for bits in flipped)
    assert len(flipped) > 20


def test_nobody_hashes_a_corrupt_read_before_its_bit_is_flipped() -> None:
    store = FaultLayer(filled(), options_of("corrupt"), "")
    told: list[int] = []

    assert store.read_many([RangeRead("a", 0, [bytearray(10)], on_filled=told.append)]) == [Outcome(Status.HIT)]

    assert told == []


def test_requests_that_nothing_happens_to_stay_one_batch() -> None:
    inner = FaultyStore(filled())
    store = FaultLayer(inner, FaultOptions(seed=3, error_rate=0.5), "")
    keys = [f"k{number}" for number in range(64)]

    outcomes = store.write_many([ObjectWrite(key, [BODY]) for key in keys])

    failed = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome.status is Status.FAILED]
    assert 0 < len(failed) < len(keys)
    assert [call.op for call in inner.calls].count("write_many") == 1
    assert [call.key for call in inner.calls if call.op == "write"] == [key for key in keys if key not in failed]


def struck_keys(seed: int, rank: str, keys: Sequence[str], rate: float = 0.3) -> dict[str, list[bool]]:
    plan = FaultPlan(FaultOptions(seed=seed, error_rate=rate), rank)
    with ThreadPoolExecutor(8) as pool:
        times = [list(pool.map(lambda key: plan.draw("read", key).kind is not None, keys)) for _ in range(3)]
    return {key: list(answers) for key, *answers in zip(keys, *times, strict=True)}


KEYS = [f"key-{number}" for number in range(400)]


def test_the_same_seed_gives_the_same_faults_in_any_order() -> None:
    assert struck_keys(7, "tp0pp0", KEYS) == struck_keys(7, "tp0pp0", KEYS[::-1])


@pytest.mark.parametrize(("seed", "rank"), [(8, "tp0pp0"), (7, "tp1pp0")], ids=["seed", "rank"])
def test_another_seed_or_rank_gives_other_faults(seed: int, rank: str) -> None:
    assert struck_keys(seed, rank, KEYS) != struck_keys(7, "tp0pp0", KEYS)


def test_a_request_that_is_made_again_is_drawn_anew() -> None:
    answers = struck_keys(7, "", KEYS).values()

    assert any(first != second for first, second, _ in answers)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95], ids=str)
def test_a_rate_is_the_share_of_the_requests(rate: float) -> None:
    struck = [answer for answers in struck_keys(11, "", KEYS, rate).values() for answer in answers]

    assert abs(sum(struck) / len(struck) - rate) < 0.05


def test_only_the_operations_that_are_named_go_wrong() -> None:
    store = FaultLayer(filled(), options_of("error", ops=("write", "stat")), "")

    assert store.read_into("a", 0, [bytearray(10)])
    assert store.delete("a")
    with pytest.raises(StoreUnavailable):
        store.write("c", [BODY])
    assert [type(outcome.error) for outcome in store.exists_many(["b"])] == [StoreUnavailable]


@pytest.mark.parametrize("rank", ["tp0pp0", "tp1pp0", ""], ids=["first", "second", "no-rank"])
def test_only_the_ranks_that_are_named_have_faults(
    rank: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HICACHE_RANK", rank)

    with open_store("memory", {"middleware": {"faults": {"error_rate": 1, "only_ranks": ["tp1pp0"]}}}) as store:
        assert isinstance(store, FaultLayer) == (rank == "tp1pp0")

    assert ("faults.on" in caplog.text) == (rank == "tp1pp0")
    assert "only_ranks=('tp1pp0',)" in caplog.text


def test_faults_are_logged_as_a_warning_when_the_store_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    with open_store("memory", {"middleware": {"faults": {"seed": 5, "error_rate": "0.25"}}}):
        pass

    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "faults.on backend=memory rank=none seed=5 error_rate=0.25")
    ]


def test_what_happened_is_counted() -> None:
    store = FaultLayer(filled(), FaultOptions(miss_rate=1.0, delay_rate=1.0, delay_s=0.0001), "")

    assert store.exists_many(["a", "b"]) == [MISS, MISS]

    assert store.struck == {"miss": 2, "wait": 2}


def test_a_delayed_request_is_performed() -> None:
    store = FaultLayer(filled(), FaultOptions(delay_rate=1.0, delay_s=0.0001), "")

    assert store.write("c", [BODY]) is WriteResult.STORED
    assert store.struck["wait"] == 1


def test_a_request_that_hangs_fails_when_the_store_is_closed() -> None:
    store = FaultLayer(filled(), FaultOptions(hang_rate=1.0), "")
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(store.stat, "a")
        # Closing before it has arrived fails it just the same.
        store.close()

        with pytest.raises(StoreUnavailable, match="closed"):
            hanging.result(60)


def test_a_batch_that_hangs_fails_request_by_request_when_the_store_is_closed() -> None:
    store = FaultLayer(filled(), FaultOptions(hang_rate=1.0), "")
    store.close()

    assert [type(outcome.error) for outcome in store.exists_many(["a", "b"])] == [StoreUnavailable] * 2


@pytest.mark.parametrize(("call", "kind"), STRUCK)
def test_a_closed_store_is_unavailable_whatever_goes_wrong(call: str, kind: str) -> None:
    store = FaultLayer(filled(), options_of(kind), "")
    store.close()

    seen = answer_of(store, call)

    assert seen is StoreUnavailable or (isinstance(seen, list) and set(seen) == {(Status.FAILED, StoreUnavailable)})


def test_requests_that_hang_take_up_no_room_once_their_deadline_is_over() -> None:
    options = MiddlewareOptions(faults=FaultOptions(hang_rate=1.0, ops=("stat",)), deadline_s=60.0)

    with wrap(filled(), options) as store:
        hung = []
        for _ in range(40):
            with within(0.01):
                hung.append(answer_of(store, "stat"))
        join_guards()
        written = [store.write(f"k{number}", [BODY]) for number in range(3)]

    assert hung == [StoreUnavailable] * 40
    assert written == [WriteResult.STORED] * 3


@pytest.mark.parametrize("call", ["read", "read_many"])
def test_a_deadline_ends_a_request_that_hangs(call: str) -> None:
    options = MiddlewareOptions(faults=FaultOptions(hang_rate=1.0), deadline_s=0.05)

    inner = MemoryStore()
    inner.capabilities = replace(inner.capabilities, keeps_deadline=True)

    with wrap(inner, options) as store:
        seen = answer_of(store, call)

    assert seen in (StoreUnavailable, [(Status.FAILED, StoreUnavailable)] * 3)


def test_retries_make_up_for_errors() -> None:
    options = MiddlewareOptions(faults=FaultOptions(seed=2, error_rate=0.4), retry_attempts=30, retry_base_s=1e-9)
    keys = [f"k{number}" for number in range(50)]

    with wrap(MemoryStore(), options) as store:
        written = store.write_many([ObjectWrite(key, [BODY]) for key in keys])
        found = store.exists_many(keys)

    assert all(written)
    assert all(found)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"eror_rate": 0.1}, "did you mean error_rate"),
        ({"error_rate": 1.5}, "error_rate = 1.5 from middleware.faults: expected a share"),
        ({"error_rate": True}, "expected a share"),
        ({"error_rate": 0.6, "corrupt_rate": 0.6}, "of all read requests a share of 1.2"),
        ({"delay_rate": 0.6, "hang_rate": 0.6}, "delay_rate"),
        ({"delay_s": -1}, "expected seconds"),
        ({"delay_s": "nan"}, "expected seconds"),
        ({"ops": ["read", "reed"]}, "there is no 'reed'"),
        ({"only_ranks": 1}, "expected names"),
        ({"seed": -1}, "seed = -1"),
        (True, "expected an object"),
        ("{", "expected an object"),
    ],
    ids=json.dumps,
)
def test_a_wrong_fault_option_names_itself(faults: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store("memory", {"middleware": {"faults": faults}})


def test_options_made_by_hand_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"error_rate = 2\.0"):
        FaultOptions(error_rate=2.0)


def test_faults_come_from_the_environment_and_a_url() -> None:
    environ = {"HICACHE_MIDDLEWARE_FAULTS": '{"seed": 4, "ops": "read,stat"}'}

    from_environment = resolve_store("memory", {}, environ).middleware.faults
    from_url = resolve_store('memory://?middleware.faults={"seed":4,"ops":["read","stat"]}', {}, {}).middleware.faults

    assert from_environment == from_url == FaultOptions(seed=4, ops=("read", "stat"))


SHAPE = KVShape.mha(num_layers=4, num_kv_heads=2, head_dim=32, dtype="float32", page_tokens=16)
GRID = Grid(2, 1)
LAYOUT = ShardLayout(SHAPE, GRID, Topology(1, 1).shard(SHAPE, tp_rank=0, pp_rank=0))
PAGES = 24


def test_pages_on_a_real_server_are_right_or_missing_whatever_goes_wrong(service: RedisService) -> None:
    rates = dict.fromkeys(("error", "lost_answer", "lost_write", "miss", "short", "corrupt", "delay"), 0.03)
    faults = {"seed": 6, "delay_s": 0.001} | {f"{kind}_rate": rate for kind, rate in rates.items()}
    options = {"key_prefix": "faults:", "middleware": {"faults": faults}}
    hashes = hashes_of(PAGES, SHAPE.page_tokens)
    want = [coded_page(LAYOUT, page) for page in range(PAGES)]
    hits = 0

    with open_store(service.url, options) as store:
        assert isinstance(store, FaultLayer)
        pages = PageStore(store, Namespace.of(model_id="m", shape=SHAPE, grid=GRID), LAYOUT)
        for _ in range(8):
            pages.write_pages(hashes, views(want))
            got = poisoned_pages(LAYOUT, PAGES)
            outcomes = pages.read_pages(hashes, views(got))
            hits += sum(map(bool, outcomes))
            assert [got[page] for page in range(PAGES) if outcomes[page]] == [
                want[page] for page in range(PAGES) if outcomes[page]
            ]
        struck = set(store.struck)

    assert hits > 0
    assert struck >= {*rates, "wait"} - {"delay"}
    with open_store(service.url, {"key_prefix": "faults:"}) as store:
        pages = PageStore(store, Namespace.of(model_id="m", shape=SHAPE, grid=GRID), LAYOUT)
        assert all(pages.write_pages(hashes, views(want)))
        got = poisoned_pages(LAYOUT, PAGES)
        assert all(pages.read_pages(hashes, views(got)))
        assert got == want
