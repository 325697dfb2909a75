from __future__ import annotations

import pytest

from hicache_storage.backends.redis import wire
from hicache_storage.backends.redis.errors import ConnectionLost
from hicache_storage.backends.redis.wire import Patience


class Clock:
    """What `time.monotonic` says, as the test wants it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(wire, "time", clock)
    return clock


def test_patience_begins_when_it_is_made(clock: Clock) -> None:
    patience = Patience(10.0)

    clock.now_s += 9.0
    assert patience.left_s() == 1.0

    clock.now_s += 1.0
    with pytest.raises(ConnectionLost) as caught:
        patience.left_s()
    assert caught.value.silent


def test_renewed_patience_begins_with_the_next_wait(clock: Clock) -> None:
    patience = Patience(10.0)
    clock.now_s += 9.0
    patience.renew()

    clock.now_s += 9.0
    assert patience.left_s() == 10.0

    clock.now_s += 4.0
    assert patience.left_s() == 6.0


def test_renewed_patience_ends_with_the_operation(clock: Clock) -> None:
    patience = Patience(10.0, ends_at=clock.now_s + 15.0)
    clock.now_s += 9.0
    patience.renew()

    assert patience.left_s() == 6.0

    clock.now_s += 6.0
    with pytest.raises(ConnectionLost):
        patience.left_s()
