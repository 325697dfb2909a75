"""Caches of pipeline stages whose transfers finish at different times: they stay equal, step by step.

Field faults F8 (stages that take different numbers of acknowledgements), F9 (a rank with nothing to say) and F10
(hits that differ between ranks).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.engine_integration.radix import Node, Tier, Transfer
from hicache_storage.engine_integration.store_tier.prefetch import Fetch, Prefetcher
from hicache_storage.telemetry import Counters
from tests.engine_integration.parallel.pipeline import PATIENCE_S, SHAPES, Place, on_all, places
from tests.engine_integration.radix.pages import Bench
from tests.engine_integration.store_tier.pages import ScriptedPages

STEPS = 24
HASHES = [f"page{number}" for number in range(8)]


class Stage:
    """One rank's tree, and backups that finish after as many steps as its own seed says."""

    def __init__(self, seed: int) -> None:
        self.bench = Bench(device=30)
        self.waited = 0
        self._rng = random.Random(seed)
        self._running: deque[tuple[str, Transfer, int]] = deque()
        self._now = 0

    def begin(self, letters: str) -> None:
        """Compute a prefix and begin to back up what of it is not on the host."""
        self._now += 1
        if len(self.bench.device.free_pages) < len(letters):
            self.bench.evict(Tier.DEVICE, len(letters))
        node = self.bench.insert(letters).node
        nodes = self.bench.tree.unbacked(node)
        if nodes:
            pages = self.bench.host.take(sum(one.num_pages for one in nodes))
            transfer = self.bench.tree.transfers.begin_backup(nodes, pages)
            self._running.append((letters, transfer, self._now + self._rng.randrange(6)))

    def ready(self) -> int:
        """Return how many of the oldest backups this rank sees finished."""
        done = [finished <= self._now for _, _, finished in self._running]
        return done.index(False) if False in done else len(done)

    def take(self, count: int) -> list[str]:
        """Apply the *count* oldest backups, after those of them that still run."""
        taken = []
        for _ in range(count):
            name, transfer, finished = self._running.popleft()
            self.waited += finished > self._now
            self.bench.tree.transfers.complete(transfer)
            taken.append(name)
        self.bench.check()
        return taken

    def state(self) -> list[tuple[object, ...]]:
        """Return everything of the tree that later decisions depend on."""
        tree = self.bench.tree
        nodes = sorted(tree.books.nodes(), key=lambda node: node.id)
        evictable = (tree.num_evictable(Tier.DEVICE), tree.num_evictable(Tier.HOST))
        return [evictable, *((node.id, bytes(node.ids), *_stays(node)) for node in nodes)]


def _stays(node: Node) -> list[tuple[object, ...]]:
    stays = (node.device, node.host)
    return [(None if stay.pages is None else tuple(stay.pages), stay.locks) for stay in stays]


def run(seed: int, num_stages: int, tp: int, count: Callable[[Place, Stage], int]) -> tuple[list[object], list[Stage]]:
    """Run every rank through the same prompts and return the states after each step, and the stages."""
    rng = random.Random(seed)
    prompts = ["".join(rng.choices("abcd", k=rng.randrange(1, 7))) for _ in range(STEPS)]
    ranks = places(num_stages, tp)
    stages = [Stage(seed * 100 + place.rank) for place in ranks]

    def act(place: Place) -> list[object]:
        stage = stages[place.rank]
        states: list[object] = []
        for prompt in prompts:
            stage.begin(prompt)
            place.sync.took(*stage.take(count(place, stage)))
            states.append(stage.state())
        return states

    return list(on_all(ranks, act)), stages


def agreed(place: Place, stage: Stage) -> int:
    return place.sync.agree("backups", lambda: (stage.ready(),), 1)[0]


@pytest.mark.parametrize("seed", range(200))
def test_trees_of_two_stages_are_equal_after_every_step(seed: int) -> None:
    states, _ = run(seed, 2, 1, agreed)

    assert len(states[0]) == STEPS  # type: ignore[arg-type]  # an exception has no length: told as such
    assert states[1] == states[0]


@pytest.mark.parametrize(("num_stages", "tp"), SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_trees_of_any_deployment_are_equal_after_every_step(num_stages: int, tp: int, seed: int) -> None:
    states, stages = run(seed, num_stages, tp, agreed)

    assert all(theirs == states[0] for theirs in states)
    assert all(stage.waited == 0 for stage in stages[:tp])


def test_later_stages_wait_for_what_the_first_has_finished_before_them() -> None:
    waited = [run(seed, 2, 1, agreed)[1][1].waited for seed in range(20)]

    assert sum(waited) > 0


def test_stages_that_poll_alone_part() -> None:
    """The fault itself, planted: without agreement some seed makes trees that differ."""
    parted = [states[0] != states[1] for states, _ in (run(seed, 2, 1, _polled) for seed in range(20))]

    assert any(parted)


def _polled(place: Place, stage: Stage) -> int:
    return stage.ready()


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_with_an_empty_queue_takes_part_all_the_same(silent: int) -> None:
    ranks = places(2, 2)

    def act(place: Place) -> list[list[int]]:
        ready = 0 if place.rank == silent else 3
        return [place.sync.agree("acks", lambda: (ready,), 1) for _ in range(10)]

    assert on_all(ranks, act) == [[[0]] * 10] * 4


@pytest.mark.parametrize("short", range(4))
@pytest.mark.parametrize("when", ["before the lookup", "between lookup and read"])
def test_all_stages_use_the_pages_that_every_rank_has(short: int, when: str) -> None:
    """One of four ranks loses page 5 of 8."""
    ranks = places(2, 2)
    probes, reads = (ThreadGroup.of(4, timeout_s=PATIENCE_S) for _ in range(2))
    stores = [ScriptedPages(HASHES) for _ in ranks]

    def lose() -> None:
        stores[short].held.discard(HASHES[5])

    def act(place: Place) -> tuple[int, list[int]]:
        prefetcher = Prefetcher(
            stores[place.rank].group(),
            probe_group=probes[place.rank],
            read_group=reads[place.rank],
            batch_pages=2,
            counters=Counters(),
        )
        fetch = Fetch(HASHES)
        if place.rank == short and when == "before the lookup":
            lose()
        prefetcher.probe(fetch)
        hit = prefetcher.probed.wait().pages
        if place.rank == short:
            lose()
        fetch.host_pages = range(hit)
        prefetcher.read(fetch)
        progress: list[int] = []
        is_last = False
        while not is_last:
            (count,) = place.sync.agree("progress", lambda: (prefetcher.progress.ready(),), 1)
            for _ in range(count):
                ack = prefetcher.progress.wait()
                place.sync.took(f"{ack.pages} {ack.last}")
                progress.append(ack.pages)
                is_last = ack.last
        assert prefetcher.close(PATIENCE_S)
        return hit, progress

    results = on_all(ranks, act)

    hit = 5 if when == "before the lookup" else 8
    assert results == [(hit, [2, 4, 5])] * 4
