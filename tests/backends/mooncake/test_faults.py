"""A real master and a real node that are paused, killed and started again. Nothing may hang, and all comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from hicache_storage.backends.mooncake import MooncakeOptions, MooncakeStore
from hicache_storage.errors import StoreError, StoreUnavailable
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.hooks import fetched
from hicache_storage.testing.services.mooncake import HOW_TO_GET, MooncakeService
from hicache_storage.types import Outcome, WriteResult
from tests.services import require

pytest_plugins = ["tests.backends.mooncake.services"]

_NBYTES = 1 << 20
_BODY = body_of("fault", _NBYTES)
_DEADLINE_S = 1.0
_SHORT_DEADLINE_S = 0.5
_AT_MOST_S = 15.0
"""What a deadline may cost on however busy a machine."""

_BACK_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[MooncakeService]:
    """A cluster that gives up no node, also one that is paused."""
    require("mooncake", MooncakeService.available(), HOW_TO_GET)
    with MooncakeService(64 << 20, silent_after_s=120) as service:
        yield service


@pytest.fixture
def store(cluster: MooncakeService) -> Iterator[MooncakeStore]:
    with _opened(cluster) as store:
        yield store


@pytest.fixture(params=["staged", "direct"])
def buffer(request: pytest.FixtureRequest, store: MooncakeStore) -> bytearray:
    """A target and source that the SDK touches itself, or not."""
    buffer = bytearray(_BODY)
    if request.param == "direct":
        store.register_memory(buffer)
    return buffer


def test_a_silent_node_costs_at_most_the_deadline(
    cluster: MooncakeService, store: MooncakeStore, buffer: bytearray
) -> None:
    _until_it_works(lambda: store.write("there", [buffer]))
    assert _until_it_works(lambda: store.read_into("there", 0, [buffer]))
    cluster.node.pause()
    try:
        assert _cost_s(lambda: store.read_into("there", 0, [buffer])) < _AT_MOST_S
        assert _cost_s(lambda: store.write(f"new-{id(buffer)}", [buffer])) < _AT_MOST_S
        assert _until_it_works(lambda: _answer(store.exists_many(["there"])[0]))
    finally:
        cluster.node.resume()

    target = poisoned(_NBYTES)
    assert _until_it_works(lambda: store.read_into("there", 0, [target]))
    assert target == _BODY


@pytest.mark.parametrize("call", ["read", "write", "exists", "delete", "list"])
def test_a_silent_master_costs_at_most_the_deadline(cluster: MooncakeService, call: str) -> None:
    store = _opened(cluster, deadline_s=_SHORT_DEADLINE_S)
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: store.read_into("k", 0, [bytearray(1)]),
        "write": lambda: store.write("k", [b"x"]),
        "exists": lambda: _answer(store.exists_many(["k"])[0]),
        "delete": lambda: store.delete("k"),
        "list": lambda: list(store.list_keys()),
    }
    _until_it_works(lambda: _answer(store.exists_many(["k"])[0]))
    cluster.master.pause()
    try:
        assert _cost_s(calls[call]) < _AT_MOST_S
    finally:
        cluster.master.resume()

    _until_it_works(lambda: store.write(f"after-{call}", [b"x"]))


def test_a_store_can_be_opened_before_its_master(cluster: MooncakeService) -> None:
    cluster.master.kill()
    cluster.node.kill()
    with _opened(cluster, deadline_s=_DEADLINE_S + 0.01) as store:  # No store before it has connected with that.
        with pytest.raises(StoreUnavailable):
            store.write("k", [b"x"])

        cluster.start()

        assert _until_it_works(lambda: store.write("k", [b"x"])) is WriteResult.STORED


def test_nodes_and_stores_take_up_a_new_master(cluster: MooncakeService) -> None:
    with _opened(cluster) as store:
        _until_it_works(lambda: store.write("k", [_BODY]))
        cluster.master.kill()
        assert _cost_s(lambda: store.read_into("k", 0, [bytearray(1)])) < _AT_MOST_S
        assert _cost_s(lambda: store.write("new", [b"x"])) < _AT_MOST_S

        cluster.master.start()

        assert _until_it_works(lambda: _written_and_read(store, "after")) == _BODY


def test_a_dead_nodes_objects_are_lost_and_the_next_node_is_used(own_cluster: MooncakeService) -> None:
    with _opened(own_cluster) as store:
        _until_it_works(lambda: store.write("k", [_BODY]))
        own_cluster.node.kill()
        assert not _until_it_works(lambda: store.read_into("k", 0, [bytearray(_NBYTES)]))

        own_cluster.node.start()

        assert _until_it_works(lambda: _written_and_read(store, "after")) == _BODY


def _opened(cluster: MooncakeService, deadline_s: float = _DEADLINE_S) -> MooncakeStore:
    options: dict[str, object] = dict(cluster.options) | {"deadline_s": deadline_s}
    return MooncakeStore(MooncakeOptions(**options))  # type: ignore[arg-type]


def _cost_s(call: Callable[[], object]) -> float:
    """Return how long *call* takes to fail. What was told to stop may still answer for a moment."""
    give_up_at = time.monotonic() + _BACK_WITHIN_S
    while time.monotonic() < give_up_at:
        began_s = time.monotonic()
        try:
            call()
        except StoreUnavailable:
            return time.monotonic() - began_s
    pytest.fail("it never failed")


def _answer(outcome: Outcome) -> bool:
    if outcome.error is not None:
        raise outcome.error
    return bool(outcome)


def _written_and_read(store: MooncakeStore, key: str) -> bytes | None:
    store.write(key, [_BODY])
    return fetched(store, key, 0, _NBYTES)


def _until_it_works(call: Callable[[], object]) -> object:
    """Repeat *call* until it raises no more: the cluster needs a moment to notice what has happened to it."""
    give_up_at = time.monotonic() + _BACK_WITHIN_S
    while True:
        try:
            return call()
        except StoreError:
            if time.monotonic() > give_up_at:
                raise
