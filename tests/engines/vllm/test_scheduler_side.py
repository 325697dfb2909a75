"""The scheduler alone decides what is restored; failures cost a computation and nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from hicache_storage import telemetry
from hicache_storage.engine_integration.adapters.vllm.lookups import Lookups
from hicache_storage.engine_integration.adapters.vllm.scheduler_side import Progress, SchedulerSide
from hicache_storage.engine_integration.adapters.vllm.work import PageLoad, PageSave
from hicache_storage.layout import page_hashes, request_seed
from hicache_storage.telemetry import Counters
from tests.processes import awaited

BLOCK, PAGE = 4, 8

STUCK = """
import threading
from hicache_storage.engine_integration.adapters.vllm.lookups import Lookups
from hicache_storage.telemetry import Counters
asked = threading.Event()

def hang(hashes):
    asked.set()
    threading.Event().wait()

lookups = Lookups(hang, 1.0, Counters())
lookups.ask("r", ["x"])
asked.wait()
lookups.close()
"""


class Store:
    """What a store has: the pages of these hashes, told when somebody lets it."""

    def __init__(self, hashes: Sequence[str] = ()) -> None:
        self.there = set(hashes)
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[list[str]] = []

    def lookup(self, hashes: Sequence[str]) -> int:
        self.asked.append(list(hashes))
        self.gate.wait(30)
        return next((at for at, one in enumerate(hashes) if one not in self.there), len(hashes))


class Half:
    """A scheduler's half over a store, and a clock that stands still."""

    def __init__(self, store: Store) -> None:
        self.now_s = 0.0
        self.counters = Counters()
        self.lookups = Lookups(store.lookup, 1.0, self.counters, clock=lambda: self.now_s)
        self.side = SchedulerSide(self.lookups, self.counters, block_tokens=BLOCK, page_tokens=PAGE, writes=True)

    def match(self, tokens: Sequence[int], local: int = 0, seed: str | None = None, name: str = "r") -> int | None:
        """Ask until there is an answer."""
        matched = self.side.match(name, tokens, seed, local)
        if matched is None:
            self.lookups.wait(30)
            matched = self.side.match(name, tokens, seed, local)
        return matched

    def save(self, computed: int, block_ids: Sequence[int] = (), *, replaces: bool = False) -> PageSave | None:
        """Return what a step stores that brings the request to *computed* tokens."""
        saves = self.side.step([Progress("r", block_ids, replaces, computed)], idle=False).saves
        assert len(saves) < 2
        return saves[0] if saves else None


TOKENS = list(range(100, 144))
HASHES = tuple(page_hashes(TOKENS, PAGE))


def test_first_question_is_answered_later() -> None:
    store = Store(HASHES)
    store.gate.clear()
    half = Half(store)

    assert half.side.match("r", TOKENS, None, 0) is None
    store.gate.set()
    half.lookups.wait(30)
    assert half.side.match("r", TOKENS, None, 0) == 40


def test_store_that_does_not_answer_in_time_has_nothing() -> None:
    store = Store(HASHES)
    store.gate.clear()
    half = Half(store)
    half.side.match("r", TOKENS, None, 0)

    half.now_s = 1.5

    assert half.side.match("r", TOKENS, None, 0) == 0
    assert half.counters[f"{telemetry.LOOKUP_FAILED}.deadline"] == 1
    store.gate.set()


def test_lookup_that_raises_has_found_nothing() -> None:
    counters = Counters()
    lookups = Lookups(lambda _: 1 // 0, 1.0, counters)

    lookups.ask("r", ["x"])
    lookups.wait(30)

    assert lookups.answer("r") == 0
    assert counters[f"{telemetry.LOOKUP_FAILED}.ZeroDivisionError"] == 1


def test_a_process_ends_although_a_lookup_never_returns() -> None:
    with awaited(subprocess.Popen([sys.executable, "-c", STUCK], stderr=subprocess.PIPE)) as process:
        said = process.communicate(timeout=60)[1]

    assert (process.returncode, said) == (0, b"")


@pytest.mark.parametrize(("local", "external"), [(0, 32), (8, 24), (12, 20), (32, 0), (40, 0)])
def test_only_what_vllm_lacks_is_restored(local: int, external: int) -> None:
    assert Half(Store(HASHES[:4])).match(TOKENS, local) == external


def test_last_token_is_always_computed() -> None:
    assert Half(Store(HASHES)).match(TOKENS[:40]) == 32


def test_prompt_below_a_page_asks_nothing() -> None:
    store = Store()

    assert Half(store).match(TOKENS[:8]) == 0
    assert store.asked == []


def test_answer_holds_until_the_request_is_scheduled() -> None:
    store = Store(HASHES)
    half = Half(store)

    assert (half.match(TOKENS), half.match(TOKENS)) == (40, 40)
    assert len(store.asked) == 1


def test_preempted_request_asks_again() -> None:
    store = Store(HASHES[:1])
    half = Half(store)
    half.match(TOKENS)
    half.save(44, range(11), replaces=True)

    store.there = set(HASHES)

    assert half.match(TOKENS) == 40


def test_requests_of_another_salt_share_nothing() -> None:
    half = Half(Store(HASHES))

    assert half.match(TOKENS, seed=request_seed(cache_salt="mine")) == 0


def test_load_names_the_blocks_behind_the_local_ones() -> None:
    half = Half(Store(HASHES))
    half.match(TOKENS, local=12)

    half.side.allocated("r", range(50, 61), 28)
    work = half.side.step([], idle=True)

    assert work.loads == [PageLoad("r", HASHES[1:5], HASHES[:1], 1, tuple(range(53, 60)))]
    assert work.idle
    assert half.side.step([], idle=False).loads == []


def test_nothing_to_load_is_no_load() -> None:
    half = Half(Store())
    half.match(TOKENS)

    half.side.allocated("r", range(11), 0)

    assert half.side.step([], idle=False).loads == []


def test_pages_are_stored_once_they_are_full() -> None:
    half = Half(Store())
    half.match(TOKENS)

    assert half.save(20, range(5), replaces=True) == PageSave("r", HASHES[:2], (), (0, 1, 2, 3))
    assert half.save(23, [5]) is None
    assert half.save(44, range(6, 11)) == PageSave("r", HASHES[2:5], HASHES[:2], tuple(range(4, 10)))


def test_what_the_store_has_is_not_stored_again() -> None:
    half = Half(Store(HASHES[:2]))
    half.match(TOKENS)

    assert half.save(44, range(11), replaces=True) == PageSave("r", HASHES[2:5], HASHES[:2], tuple(range(4, 10)))


def test_tokens_that_are_not_known_yet_are_not_stored() -> None:
    tokens = list(TOKENS[:20])
    half = Half(Store())
    half.match(tokens)
    half.save(20, range(5), replaces=True)

    assert half.save(24, [5]) is None
    tokens += TOKENS[20:24]
    assert half.save(25) == PageSave("r", HASHES[2:3], HASHES[:2], (4, 5))


def test_failed_load_is_computed_and_stored_again() -> None:
    half = Half(Store(HASHES))
    half.match(TOKENS)
    half.side.allocated("r", range(11), 40)
    half.side.step([], idle=True)

    half.side.loads_ended(["r"], {4, 5, 6, 7, 8, 9})

    assert half.match(TOKENS) == 0
    assert half.save(44, range(11), replaces=True) == PageSave("r", HASHES[2:5], HASHES[:2], tuple(range(4, 10)))
    assert half.counters[telemetry.LOAD_FAILED] == 1


def test_failure_of_another_requests_blocks_is_none_of_ours() -> None:
    half = Half(Store(HASHES))
    half.match(TOKENS)
    half.side.allocated("r", range(11), 40)

    half.side.loads_ended([], {77})

    assert half.match(TOKENS) == 40


def test_blocks_of_a_load_that_ended_are_no_longer_watched() -> None:
    half = Half(Store(HASHES))
    half.match(TOKENS)
    half.side.allocated("r", range(11), 40)
    half.side.loads_ended(["r"], set())

    half.side.loads_ended([], {4})

    assert half.match(TOKENS) == 40


def test_pages_that_found_no_room_are_stored_in_a_later_step() -> None:
    half = Half(Store())
    half.match(TOKENS)
    half.save(40, range(10), replaces=True)

    half.side.postponed({"r": 3})

    assert half.save(41, [10]) == PageSave("r", HASHES[3:5], HASHES[:3], (6, 7, 8, 9))


def test_pages_left_out_for_good_are_counted() -> None:
    half = Half(Store())
    half.match(TOKENS)
    half.save(40, range(10), replaces=True)
    half.side.postponed({"r": 3})

    half.side.finished("r")

    assert half.counters[f"{telemetry.PAGES_NOT_STORED}.staging_full"] == 2


def test_request_that_nobody_asked_for_is_left_alone() -> None:
    assert Half(Store()).save(44, range(11), replaces=True) is None


def test_finished_request_is_forgotten_with_its_question() -> None:
    store = Store(HASHES)
    store.gate.clear()
    half = Half(store)
    half.side.match("r", TOKENS, None, 0)

    half.side.finished("r")
    store.gate.set()

    assert not half.lookups.is_asked("r")


def test_load_that_outlives_its_request_concerns_nobody() -> None:
    half = Half(Store(HASHES))
    half.match(TOKENS)
    half.side.allocated("r", range(11), 40)
    half.side.finished("r")

    half.side.loads_ended(["r"], {4})

    assert half.counters[telemetry.LOAD_FAILED] == 0
    assert half.match(TOKENS) == 40


@pytest.mark.parametrize("begins", [0, 1], ids=["with-it", "before-it-is-over"])
def test_what_begins_while_another_connector_loads_is_stored_once_that_step_is_over(begins: int) -> None:
    """vLLM counts the tokens of a request anew if that load has failed, and says so only then."""
    half = Half(Store())
    half.match(TOKENS)
    first = [Progress("r", range(5), replaces=True, computed_tokens=20)]
    steps = [first, [Progress("r", [], replaces=False, computed_tokens=20)]] if begins == 0 else [[], first]
    loading = half.side.step(steps[0], idle=False, doubtful=True)
    after = half.side.step(steps[1], idle=False)
    assert loading.number is not None
    assert (loading.saves, after.saves, after.number) == ([], [], None)

    half.side.step_over(loading.number)

    assert half.save(16) == PageSave("r", HASHES[:2], (), (0, 1, 2, 3))


def test_what_began_before_another_connector_loads_is_stored_at_once() -> None:
    half = Half(Store())
    half.match(TOKENS)
    half.save(4, [0], replaces=True)

    work = half.side.step([Progress("r", [1], replaces=False, computed_tokens=8)], idle=False, doubtful=True)

    assert work.saves == [PageSave("r", HASHES[:1], (), (0, 1))]


def test_request_that_begins_while_the_store_is_emptied_waits() -> None:
    store = Store(HASHES)
    half = Half(store)
    half.side.reset()

    assert half.side.match("r", TOKENS, None, 0) is None
    work = half.side.step([], idle=False)
    assert work.drops_saves
    assert work.number is not None
    assert not half.side.nothing_on_its_way
    half.side.step_over(work.number)
    assert half.side.nothing_on_its_way
    half.side.emptied(is_empty=True)

    assert not half.side.step([], idle=False).drops_saves
    assert half.match(TOKENS) == 40


def test_request_from_before_the_store_was_emptied_shares_nothing() -> None:
    half = Half(Store(HASHES[:1]))
    half.match(TOKENS)
    half.side.reset()
    half.side.emptied(is_empty=True)

    assert half.match(TOKENS) == 0
    assert half.save(44, range(11), replaces=True) is None
    half.side.finished("r")
    assert half.counters[f"{telemetry.PAGES_NOT_STORED}.staging_full"] == 0


def test_store_that_could_not_be_emptied_is_not_used() -> None:
    store = Store(HASHES)
    half = Half(store)
    half.side.reset()
    half.side.emptied(is_empty=False)

    assert half.side.match("r", TOKENS, None, 0) == 0
    assert half.save(44, range(11), replaces=True) is None
    assert store.asked == []
