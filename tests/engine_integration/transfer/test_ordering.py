"""The order in which a device would do the work, on lanes that write down who waits for what and end when told to."""

from __future__ import annotations

import threading

import pytest
import torch

from hicache_storage.engine_integration.tiers.host import HostPool
from hicache_storage.engine_integration.transfer import Backup, Load, Transfer, TransferOptions, backup
from hicache_storage.engine_integration.transfer.streams import Lane, Mark
from hicache_storage.errors import InvariantError
from hicache_storage.kernels import DevicePool, gather_pages
from tests.engine_integration.transfer.pools import DEADLINE_S, filled_host, random_pool, zeroed

SIX = list(range(6))


class DeviceMark(Mark):
    """A mark that the device passes when the test says so."""

    __slots__ = ("_passed", "fault")

    def __init__(self) -> None:
        super().__init__(None)
        self._passed = threading.Event()
        self.fault: RuntimeError | None = None

    def let_pass(self, fault: RuntimeError | None = None) -> None:
        self.fault = fault
        self._passed.set()

    def is_passed(self) -> bool:
        return self._passed.is_set()

    def wait(self) -> None:
        assert self._passed.wait(DEADLINE_S)
        if self.fault:
            raise self.fault


class DeviceLane(Lane):
    """A lane that writes down its marks and what it waits for."""

    passes_at_once = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.marks: list[DeviceMark] = []
        self.waited: list[Mark] = []
        self.drained = False
        self.changed = threading.Condition()

    def mark(self) -> Mark:
        mark = DeviceMark()
        if self.passes_at_once:
            mark.let_pass()
        with self.changed:
            self.marks.append(mark)
            self.changed.notify_all()
        return mark

    def after(self, mark: Mark) -> None:
        self.waited.append(mark)

    def drain(self) -> None:
        self.drained = True
        for mark in self.marks:
            mark.wait()

    def mark_number(self, number: int) -> DeviceMark:
        """Return the mark once it has been made."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.marks) > number, DEADLINE_S)
            return self.marks[number]


class SlowLane(DeviceLane):
    """A lane whose marks are passed when the test says so."""

    passes_at_once = False


def use(monkeypatch: pytest.MonkeyPatch, lane: type[Lane]) -> None:
    monkeypatch.setattr("hicache_storage.engine_integration.transfer.worker.Lane", lane)


def lanes_of(worker: Backup | Load) -> tuple[DeviceLane, DeviceLane]:
    first, second = worker.lanes
    assert isinstance(first, DeviceLane)
    assert isinstance(second, DeviceLane)
    return first, second


def pools() -> tuple[DevicePool, HostPool]:
    pool = random_pool()
    host = filled_host(pool, 2)
    host.slots.allocate(16)
    return pool, host


def test_a_backups_buffer_is_filled_again_only_behind_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DeviceLane)
    pool, host = pools()
    options = TransferOptions(route="staged", staging_nbytes=2 * host.page_nbytes)

    with Backup(pool, host, group_heads=2, options=options) as worker:
        transfer = worker.submit(SIX, SIX)

    gathering, copying = lanes_of(worker)
    assert gathering.waited[0] is transfer.after
    assert gathering.waited[3] is copying.marks[0], "the third two pages lie where the first two lay"
    assert copying.waited == gathering.marks


def test_a_loads_buffer_is_filled_again_only_behind_its_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DeviceLane)
    pool, host = pools()
    options = TransferOptions(route="staged", staging_nbytes=2 * host.page_nbytes)

    with Load(zeroed(pool), host, group_heads=2, options=options) as worker:
        transfer = worker.submit(SIX, SIX)

    copying, scattering = lanes_of(worker)
    assert copying.waited[2] is scattering.marks[0], "the third two pages lie where the first two lay"
    assert scattering.waited[0] is transfer.after
    assert scattering.waited[1:] == copying.marks


@pytest.mark.parametrize("worker_type", [Backup, Load])
def test_a_direct_transfer_starts_behind_the_callers_work(
    monkeypatch: pytest.MonkeyPatch, worker_type: type[Backup | Load]
) -> None:
    use(monkeypatch, DeviceLane)
    pool, host = pools()

    with worker_type(pool, host, group_heads=2) as worker:
        transfer = worker.submit(SIX, SIX)

    lane, _ = lanes_of(worker)
    assert lane.waited == [transfer.after]


def test_nothing_is_counted_or_unpinned_before_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SlowLane)
    pool, host = pools()

    with Backup(pool, host, group_heads=2) as worker:
        transfer = worker.submit([0], [3])
        mark = lanes_of(worker)[0].mark_number(0)

        assert (worker.completed, transfer.done()) == (0, False)
        with pytest.raises(InvariantError, match="pinned"):
            host.slots.free([3])

        mark.let_pass()
        assert transfer.wait(DEADLINE_S)
        host.slots.free([3])
        assert worker.completed == 1


def test_a_fault_of_the_device_is_that_transfers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SlowLane)
    pool, host = pools()

    with Load(zeroed(pool), host, group_heads=2) as worker:
        transfer = worker.submit([0], [3])
        lanes_of(worker)[0].mark_number(0).let_pass(RuntimeError("planted"))

    assert str(transfer.error) == "planted"
    assert (worker.failed, host.slots.num_pinned) == (1, 0)


def test_transfers_end_in_order_also_when_a_later_one_fails_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages stay pinned until the lanes are drained: part of its work may have begun."""
    use(monkeypatch, SlowLane)
    pool, host = pools()
    ended: list[tuple[Transfer, bool]] = []
    failing = threading.Event()

    class Watched(Transfer):
        def end(self, error: Exception | None) -> None:
            ended.append((self, lanes_of(worker)[1].drained))
            super().end(error)

    def fail_for_page_one(pool: DevicePool, page_ids: torch.Tensor, *args: object, **kwargs: object) -> None:
        if page_ids.tolist() == [1]:
            failing.set()
            raise RuntimeError("planted")
        # The second transfer is queued before the first one's work is handed over, so both run at once.
        assert second_is_queued.wait(DEADLINE_S)
        gather_pages(pool, page_ids, *args, **kwargs)  # type: ignore[arg-type]

    second_is_queued = threading.Event()
    monkeypatch.setattr(backup, "gather_pages", fail_for_page_one)
    monkeypatch.setattr(backup, "Transfer", Watched)
    with Backup(pool, host, group_heads=2) as worker:
        good, bad = worker.submit([0], [0]), worker.submit([1], [1])
        second_is_queued.set()
        assert failing.wait(DEADLINE_S)
        assert not ended

        lanes_of(worker)[0].mark_number(0).let_pass()
        assert bad.wait(DEADLINE_S)

    assert ended == [(good, False), (bad, True)]
    assert (good.error, str(bad.error)) == (None, "planted")
