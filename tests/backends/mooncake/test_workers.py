"""Threads and names that one process shares: a fault in one call keeps nothing from the next."""

from __future__ import annotations

import threading
import time
from typing import cast

import pytest

from hicache_storage.backends.mooncake import MooncakeOptions
from hicache_storage.backends.mooncake.engine import Engine
from hicache_storage.backends.mooncake.sdk import Client
from hicache_storage.backends.mooncake.workers import Call, Workers
from hicache_storage.types import HIT
from tests.backends.mooncake.fake_sdk import FakeClient

_PATIENT_S = 60.0
_SHORT_S = 0.05


def refused(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def one_call(within_s: float = _PATIENT_S) -> Call:
    def work(call: Call) -> None:
        call.outcomes[0] = HIT

    return Call(work, range(1), time.monotonic() + within_s)


def test_calls_share_the_threads_there_are_where_the_system_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(4)
    workers.perform([one_call()])
    monkeypatch.setattr(threading.Thread, "start", refused)
    calls = [one_call() for _ in range(3)]

    workers.perform(calls)

    assert [call.outcomes for call in calls] == [[HIT]] * 3


def test_calls_end_with_their_deadline_where_the_system_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(4)
    late, call = one_call(_SHORT_S), one_call()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        workers.perform([late])

    workers.perform([call])

    assert (late.outcomes, call.outcomes) == ([None], [HIT])


def test_names_of_a_session_that_cannot_be_ended_are_free_again() -> None:
    class Failing(FakeClient):
        def batch_get_session_end(self, keys: object) -> int:
            raise RuntimeError("the SDK's own fault")

    client = cast("Client", Failing({"k": b"0123\0"}))
    engine = Engine(MooncakeOptions(master_server_address="127.0.0.1:1", local_hostname="test-workers"))

    for _ in range(2):
        with pytest.raises(RuntimeError, match="own fault"), engine.session(client, {"k"}) as mine:
            assert mine == {"k"}
