"""What is left behind when a caller is interrupted, or when a copy fails in a way that no store's error is."""

from __future__ import annotations

import pytest

from hicache_storage.backends.tiered import TieredOptions, TieredStore, copying
from hicache_storage.backends.tiered.background import Background, Copy
from hicache_storage.types import RangeRead
from tests.backends.tiered.setup import BODY, KEY, Tier

DEADLINE_S = 60


class Closing(Tier):
    closed = False

    def close(self) -> None:
        self.closed = True


def interrupted(*_: object) -> int:
    raise KeyboardInterrupt


def test_a_close_that_is_interrupted_while_it_waits_closes_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = [Closing(), Closing()]
    store = TieredStore(TieredOptions(stores=tiers))
    monkeypatch.setattr(store._copier.background, "close", interrupted)

    with pytest.raises(KeyboardInterrupt):
        store.close()

    assert [tier.closed for tier in tiers] == [True, True]


def test_a_removal_that_is_interrupted_while_it_waits_leaves_the_key_free(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Copy] = []
    background = Background(made.append, threads=1, limit=8)
    copy = Copy(KEY, len(BODY), 1, (0,), is_write=False)

    with monkeypatch.context() as patch:
        patch.setattr(background._books().changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), background.held([KEY], DEADLINE_S):
            pytest.fail("interrupted before")

    assert background.submit(copy)
    assert background.settle(DEADLINE_S)
    assert made == [copy]
    background.close(DEADLINE_S)


@pytest.mark.parametrize("error", [MemoryError, SystemExit])
def test_a_copy_that_fails_in_an_odd_way_does_not_end_its_thread(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def refuse(_: int) -> bytearray:
        raise error

    upper, lower = Tier(), Tier()
    lower.plant()
    lower.plant("other")
    with TieredStore(TieredOptions(stores=[upper, lower], background_threads=1)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(copying, "bytearray", refuse, raising=False)
            assert all(store.read_many([RangeRead(KEY, 0, [bytearray(len(BODY))], len(BODY))]))
            assert store.settle(DEADLINE_S)
        assert all(store.read_many([RangeRead("other", 0, [bytearray(len(BODY))], len(BODY))]))
        assert store.settle(DEADLINE_S)

        assert (upper.has(KEY), upper.has("other")) == (None, BODY)
        assert store.counters[f"copy_failed.{error.__name__}"] == 1
