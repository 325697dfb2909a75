"""Any store against the specification, by random but repeatable operations.

TestModel = store_machine(MemoryStore)

@contextmanager
def new_store() -> Iterator[ObjectStore]:
    with TemporaryDirectory() as folder, MyStore(MyOptions(path=Path(folder))) as store:
        yield store

TestMyModel = store_machine(new_store)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from unittest import TestCase

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from hicache_storage.errors import StoreError
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import ObjectWrite, Outcome, RangeRead

# Few keys, so that operations meet: path components of each other, case, patterns, Unicode, none at all.
_KEYS = st.sampled_from(["a", "a/b", "a/../a", "A", "a*", "..", "caf\u00e9", "cafe\u0301", "n" * 255, ""])
_PREFIXES = ("", "a", "a/", "a*", ".", "caf", "n", "x")
_SEEDS = st.sampled_from(["one", "two"])
_QUARTERS = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(sorted)
_EDGES = (0, 1, 2, 511, 512, 513, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20)


def store_machine(
    make_store: Callable[[], AbstractContextManager[ObjectStore]], *, max_nbytes: int = 4099
) -> type[TestCase]:
    """Return a test case that does the same random things to a new store and to a `MemoryStore` and compares the answers.

    Every run finds the same examples. Nothing is kept between runs; a failure prints what reproduces it.

    Args:
        make_store: gives an empty store; its context is left after every example.
        max_nbytes: size of the largest object.
    """

    class StoreMachine(_StoreMachine):
        def __init__(self) -> None:
            super().__init__(make_store(), max_nbytes)

    case: type[TestCase] = StoreMachine.TestCase
    StoreMachine.TestCase.settings = settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=40,
        stateful_step_count=25,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return case


class _StoreMachine(RuleBasedStateMachine):
    """The rules; every one performs a call on both stores and compares what they say."""

    def __init__(self, context: AbstractContextManager[ObjectStore], max_nbytes: int) -> None:
        super().__init__()
        self._context = context
        self._store = context.__enter__()
        self._specification = MemoryStore()
        self._specification.capabilities = self._store.capabilities
        self._nbytes = st.sampled_from([*[n for n in _EDGES if n < max_nbytes], max_nbytes])

    def teardown(self) -> None:
        self._context.__exit__(None, None, None)

    @rule(key=_KEYS, seed=_SEEDS, data=st.data())
    def write(self, key: str, seed: str, data: st.DataObject) -> None:
        body = body_of(seed, data.draw(self._nbytes, label="nbytes"))
        half = len(body) // 2

        self._compare(lambda store: store.write(key, [body[:half], body[half:]]))

    @rule(keys=st.lists(_KEYS, max_size=6, unique=True), seed=_SEEDS, data=st.data())
    def write_many(self, keys: list[str], seed: str, data: st.DataObject) -> None:
        body = body_of(seed, data.draw(self._nbytes, label="nbytes"))

        self._compare(lambda store: _said(store.write_many([ObjectWrite(key, [body]) for key in keys])))

    @rule(key=_KEYS, data=st.data())
    def read_anything(self, key: str, data: st.DataObject) -> None:
        offset = data.draw(self._nbytes, label="offset")
        lengths = data.draw(st.lists(self._nbytes, max_size=3), label="lengths")
        object_nbytes = data.draw(st.none() | self._nbytes, label="object_nbytes")

        self._compare(lambda store: _read(store, key, offset, lengths, object_nbytes))

    @rule(key=_KEYS, quarters=_QUARTERS, wrong_by=st.sampled_from([0, 0, 1]))
    def read_a_part(self, key: str, quarters: list[int], wrong_by: int) -> None:
        nbytes = self._known_nbytes(key)
        offset, stop = (nbytes * quarter // 4 for quarter in quarters)

        self._compare(lambda store: _read(store, key, offset, [stop - offset], nbytes + wrong_by))

    @rule(requests=st.lists(st.tuples(_KEYS, _QUARTERS, st.booleans()), max_size=6))
    def read_many(self, requests: list[tuple[str, list[int], bool]]) -> None:
        ranges: list[tuple[str, int, int]] = []
        for key, quarters, past in requests:
            nbytes = self._known_nbytes(key)
            offset, stop = (nbytes * quarter // 4 for quarter in quarters)
            ranges.append((key, offset, stop - offset + past))

        self._compare(lambda store: _read_many(store, ranges))

    @rule(key=_KEYS)
    def stat(self, key: str) -> None:
        self._compare(lambda store: _nbytes_seen(store, key))

    @rule(key=_KEYS)
    def delete(self, key: str) -> None:
        self._compare(lambda store: store.delete(key))

    @rule(key=_KEYS)
    def quarantine(self, key: str) -> None:
        self._compare(lambda store: store.quarantine(key))

    @rule(keys=st.lists(_KEYS, max_size=4))
    def exists_and_touch_many(self, keys: list[str]) -> None:
        self._compare(lambda store: _said(store.exists_many(keys)) + _said(store.touch_many(keys)))

    @rule(keys=st.lists(_KEYS, max_size=3, unique=True))
    def delete_many(self, keys: list[str]) -> None:
        self._compare(lambda store: _said(store.delete_many(keys)))

    @rule()
    def list_keys(self) -> None:
        if self._store.capabilities.listing:
            self._compare(lambda store: [_listed(store, prefix) for prefix in _PREFIXES])

    def _compare(self, call: Callable[[ObjectStore], object]) -> None:
        assert _answer(self._store, call) == _answer(self._specification, call)

    def _known_nbytes(self, key: str) -> int:
        return next((info.nbytes for info in self._specification.list_keys(key) if info.key == key), 0)


def _answer(store: ObjectStore, call: Callable[[ObjectStore], object]) -> object:
    try:
        return call(store)
    except StoreError as error:
        return type(error)


def _said(outcomes: Sequence[Outcome]) -> list[object]:
    return [outcome.status if outcome.error is None else type(outcome.error) for outcome in outcomes]


def _read(store: ObjectStore, key: str, offset: int, lengths: list[int], object_nbytes: int | None) -> object:
    targets = [poisoned(length) for length in lengths]
    found = store.read_into(key, offset, targets, object_nbytes=object_nbytes)
    return targets if found else None


def _read_many(store: ObjectStore, ranges: list[tuple[str, int, int]]) -> object:
    targets = [poisoned(length) for _, _, length in ranges]
    reads = [RangeRead(key, offset, [target]) for (key, offset, _), target in zip(ranges, targets, strict=True)]
    outcomes = store.read_many(reads)
    return _said(outcomes), [target for target, outcome in zip(targets, outcomes, strict=False) if outcome]


def _listed(store: ObjectStore, prefix: str) -> list[tuple[str, int]]:
    return sorted((info.key, info.nbytes) for info in store.list_keys(prefix))


def _nbytes_seen(store: ObjectStore, key: str) -> int | None:
    info = store.stat(key)
    return None if info is None else info.nbytes
