"""Whoever reads a layer waits for that layer alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hicache_storage.engine_integration.transfer import LayerEvents
from hicache_storage.errors import HiCacheError
from tests.engine_integration.transfer.pools import DEADLINE_S

CPU = torch.device("cpu")


def test_a_recorded_layer_is_ready_and_its_neighbours_are_not() -> None:
    events = LayerEvents(3, CPU)

    events.record(1)

    assert [events.is_ready(layer) for layer in range(3)] == [False, True, False]
    events.wait(1, DEADLINE_S)


def test_waiting_ends_when_the_layer_is_recorded() -> None:
    events = LayerEvents(2, CPU)

    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(events.wait, 0, DEADLINE_S)
        events.record(1)
        assert not waiting.done()
        events.record(0)
        waiting.result(DEADLINE_S)


def test_a_layer_that_does_not_come_in_time_is_an_error() -> None:
    with pytest.raises(TimeoutError, match="layer 0"):
        LayerEvents(1, CPU).wait(0, 0)


def test_failure_wakes_whoever_waits() -> None:
    events = LayerEvents(1, CPU)

    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(events.wait, 0, DEADLINE_S)
        events.fail(RuntimeError("planted"))
        with pytest.raises(HiCacheError, match="layer 0 was not loaded: planted"):
            waiting.result(DEADLINE_S)


def test_a_layer_that_arrived_before_the_failure_can_be_read() -> None:
    events = LayerEvents(2, CPU)
    events.record(0)

    events.fail(RuntimeError("planted"))

    events.wait(0, DEADLINE_S)
