"""The group that the tests trust: a meeting has taken place for all ranks, or for none."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.errors import RankFailure
from tests.engine_integration.parallel.pipeline import PATIENCE_S


def test_a_meeting_that_took_place_for_one_rank_took_place_for_one_that_hears_late_of_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first rank has passed, has missed the second at the next meeting, and only then the second wakes up."""
    first, second = ThreadGroup.of(2, timeout_s=PATIENCE_S)
    barrier, is_lost = first._meeting.barrier, threading.Event()
    wait = barrier.wait

    def wait_and_hear_late() -> int:
        place = wait()
        if threading.current_thread() is not threading.main_thread():
            assert is_lost.wait(PATIENCE_S)
            raise threading.BrokenBarrierError
        return place

    monkeypatch.setattr(barrier, "wait", wait_and_hear_late)
    with ThreadPoolExecutor(1) as other:
        met = other.submit(second.all_gather, "hits", [2])
        assert first.all_gather("hits", [1]) == [[1], [2]]
        first.leave()
        with pytest.raises(RankFailure):
            first.all_gather("reads", [3])
        is_lost.set()

        assert met.result() == [[1], [2]]
    with pytest.raises(RankFailure):
        second.all_gather("reads", [4])
