"""Signals around a server's life: before it serves, while it does, when it has stopped."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hicache_storage.cli.serve import start
from hicache_storage.cli.serve.arguments import add_arguments, read_settings
from hicache_storage.cli.serve.lifecycle import StopOrder
from hicache_storage.interrupts import ENDING
from tests.cli.serve.fake_engine import FakeEngine
from tests.cli.serve.toy_folder import write_tokenizer, write_toy_folder
from tests.interrupting import handled_by


@pytest.fixture(autouse=True)
def _all_are_heeded() -> Iterator[None]:
    """As below a terminal, but that none of them ends pytest."""
    with handled_by(unheeded, ENDING):
        yield


def unheeded(*_: object) -> None:
    """Go on."""


def test_an_interrupt_before_the_server_has_its_engine_ends_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    model = write_toy_folder(tmp_path / "toy")
    write_tokenizer(model)
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    async def interrupted(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(start, "_serve", interrupted)

    with pytest.raises(KeyboardInterrupt):
        start.run_server(
            read_settings(parser.parse_args(["--model-path", str(model), "--port", "0"])), lambda *_: engine
        )

    assert engine.closed.is_set()


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_an_order_to_stop(number: int) -> None:
    async def wait_for_order() -> None:
        stop = StopOrder()
        with stop.by_signals():
            os.kill(os.getpid(), number)
            await asyncio.wait_for(stop.drain.wait(), 60)

    asyncio.run(wait_for_order())


def test_a_closed_terminal_that_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def look() -> None:
        with StopOrder().by_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN

    asyncio.run(look())


def test_a_server_that_has_stopped_as_ordered_is_not_disturbed_by_the_order() -> None:
    async def stopped() -> None:
        stop = StopOrder()
        with stop.by_signals():
            stop.give()
        for number in ENDING:
            os.kill(os.getpid(), number)

    asyncio.run(stopped())

    assert [signal.getsignal(number) for number in ENDING] == [signal.SIG_IGN] * len(ENDING)


def test_a_server_that_fails_heeds_signals_as_before() -> None:
    async def failed() -> None:
        with suppress(ValueError), StopOrder().by_signals():
            raise ValueError

    asyncio.run(failed())

    assert [signal.getsignal(number) for number in ENDING] == [unheeded] * len(ENDING)
