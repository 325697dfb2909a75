"""How many pages a host tier gets, and what is said when they do not fit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hicache_storage.engine_integration.tiers import (
    HostMemory,
    HostSize,
    PageAllocator,
    capacity_tokens,
    common_capacity_tokens,
    read_host_memory,
)
from hicache_storage.errors import ConfigError, TierFull

GIB = 1 << 30
MEMORY = HostMemory(allowed_nbytes=64 * GIB, available_nbytes=60 * GIB, source="a test")
PAGE_NBYTES = 1 << 20


def pages(size: HostSize, *, device_pages: int = 1000, memory: HostMemory = MEMORY) -> int:
    return size.num_pages(PAGE_NBYTES, device_pages=device_pages, memory=memory)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(HostSize(nbytes=10 * PAGE_NBYTES + 5), 10, id="bytes, whole pages"),
        pytest.param(HostSize(ratio=2.0), 2000, id="ratio"),
        pytest.param(HostSize(ratio=0.3), 300, id="ratio that has no exact binary fraction"),
        pytest.param(HostSize(memory_fraction=0.5), 32 * 1024, id="fraction of what the cgroup allows"),
        pytest.param(HostSize(memory_fraction=0.5, ranks=8), 4 * 1024, id="fraction shared by eight ranks"),
        pytest.param(HostSize(nbytes=59 * GIB, reserve_nbytes=GIB), 59 * 1024, id="all that is there"),
    ],
)
def test_size_in_pages(size: HostSize, expected: int) -> None:
    assert pages(size) == expected


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"nbytes": 1, "ratio": 1.0},
        {"nbytes": 0},
        {"ratio": -1.0},
        {"ratio": float("nan")},
        {"memory_fraction": 1.1},
        {"nbytes": 1, "reserve_nbytes": -1},
        {"nbytes": 1, "ranks": 0},
    ],
)
def test_a_size_that_says_nothing_or_too_much_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        HostSize(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [HostSize(nbytes=PAGE_NBYTES - 1), HostSize(ratio=0.0001)])
def test_less_than_a_page_is_refused(size: HostSize) -> None:
    with pytest.raises(ConfigError, match=f"less than one host page of {PAGE_NBYTES} bytes"):
        pages(size)


def test_what_does_not_fit_is_refused_with_every_number() -> None:
    with pytest.raises(ConfigError) as refusal:
        pages(HostSize(ratio=70.0, reserve_nbytes=GIB), device_pages=1024)

    for part in (
        "ratio = 70.0 of 1024 device pages",
        str(70 * GIB),
        f"{60 * GIB} of {64 * GIB} (a test)",
        str(GIB),
        f"at most {59 * 1024} pages fit",
    ):
        assert part in str(refusal.value)


def test_the_tiers_of_all_ranks_must_fit() -> None:
    assert pages(HostSize(nbytes=20 * GIB, ranks=2)) == 20 * 1024

    with pytest.raises(ConfigError, match=r"on each of 4 rank\(s\)"):
        pages(HostSize(nbytes=20 * GIB, ranks=4))


def test_a_rank_that_comes_second_does_not_count_the_firsts_tier_twice() -> None:
    size = HostSize(memory_fraction=0.6, ranks=2)
    left = HostMemory(allowed_nbytes=64 * GIB, available_nbytes=40 * GIB, source="a test")

    assert pages(size, memory=left) == pages(size)


# -- the machine -------------------------------------------------------------------------------------------------------


class Machine:
    """A ``/proc`` and ``/sys`` in a folder."""

    def __init__(self, root: Path, cgroup: str = "0::/app/engine\n") -> None:
        self.root = root
        self.put("proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 100 kB\nMemAvailable: 62914560 kB\n")
        self.put("proc/self/cgroup", cgroup)

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def put_v2(self, group: str, limit: str, current: int, inactive_file: int = 0) -> None:
        folder = f"sys/fs/cgroup/{group}"
        self.put(f"{folder}/memory.max", f"{limit}\n")
        self.put(f"{folder}/memory.current", f"{current}\n")
        self.put(f"{folder}/memory.stat", f"anon 17\ninactive_file {inactive_file}\n")

    def read(self) -> HostMemory:
        return read_host_memory(self.root)


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put_v2("app/engine", "max", 5 * GIB)

    assert machine.read() == HostMemory(64 * GIB, 60 * GIB, "the machine's memory")


def test_a_cgroup_limit_counts_and_its_droppable_cache_is_available(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put_v2("app/engine", str(16 * GIB), 10 * GIB, inactive_file=4 * GIB)

    assert machine.read() == HostMemory(16 * GIB, 10 * GIB, "engine/memory.max")


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put_v2("app/engine", str(32 * GIB), 2 * GIB)
    machine.put_v2("app", str(24 * GIB), 20 * GIB)

    assert machine.read() == HostMemory(24 * GIB, 4 * GIB, "app/memory.max")


def test_inside_a_container_the_mount_itself_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/kubepods/pod1/c1\n")
    machine.put_v2("", str(8 * GIB), 1 * GIB)

    assert machine.read() == HostMemory(8 * GIB, 7 * GIB, "cgroup/memory.max")


def test_cgroup_v1_counts_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "9:name=systemd:/\n4:memory:/docker/c1\n0::/\n")
    folder = "sys/fs/cgroup/memory/docker/c1"
    machine.put(f"{folder}/memory.limit_in_bytes", f"{16 * GIB}\n")
    machine.put(f"{folder}/memory.usage_in_bytes", f"{6 * GIB}\n")
    machine.put(f"{folder}/memory.stat", f"inactive_file 5\ntotal_inactive_file {2 * GIB}\n")

    assert machine.read() == HostMemory(16 * GIB, 12 * GIB, "c1/memory.limit_in_bytes")


def test_an_unlimited_v1_cgroup_does_not_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/\n")
    machine.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine.put("sys/fs/cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")

    assert machine.read() == HostMemory(64 * GIB, 60 * GIB, "the machine's memory")


def test_a_cgroup_over_its_limit_has_nothing_available(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put_v2("app/engine", str(GIB), 2 * GIB)

    assert machine.read().available_nbytes == 0


def test_a_machine_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="meminfo does not say 'MemTotal'"):
        read_host_memory(tmp_path)


def test_this_machine_says_something() -> None:
    memory = read_host_memory()

    assert 0 < memory.available_nbytes <= memory.allowed_nbytes


# -- pipeline stages ---------------------------------------------------------------------------------------------------

STAGE_LAYERS = (31, 29)
TOKEN_NBYTES_PER_LAYER = 424
PAGE_TOKENS = 64


def stage_tokens(nbytes: int) -> list[int]:
    page_nbytes = [layers * TOKEN_NBYTES_PER_LAYER * PAGE_TOKENS for layers in STAGE_LAYERS]
    return [capacity_tokens(nbytes, page, PAGE_TOKENS) for page in page_nbytes]


def test_stages_of_31_and_29_layers_and_equal_bytes_use_the_smaller_capacity() -> None:
    """F28."""
    tokens = stage_tokens(100 * 10**9)

    common = common_capacity_tokens(tokens, PAGE_TOKENS)

    assert tokens[0] < tokens[1]
    assert common == tokens[0]
    assert common % PAGE_TOKENS == 0


def test_capacity_is_cut_to_whole_pages() -> None:
    assert common_capacity_tokens([1000, 999], 64) == 15 * 64


@pytest.mark.parametrize("tokens", [[], [640, 63]])
def test_stages_without_a_page_in_common_are_refused(tokens: list[int]) -> None:
    with pytest.raises(ConfigError, match="page of 64"):
        common_capacity_tokens(tokens, 64)


def test_random_allocations_succeed_or_fail_alike_on_every_stage(rng: random.Random) -> None:
    """F28: with their own capacities the stages would part ways at the first full tier."""
    common = common_capacity_tokens(stage_tokens(10**9), PAGE_TOKENS)
    stages = [PageAllocator(common // PAGE_TOKENS) for _ in STAGE_LAYERS]
    held: list[list[int]] = []
    refused = 0

    for _ in range(1000):
        if held and rng.random() < 0.3:
            pages = held.pop(rng.randrange(len(held)))
            for stage in stages:
                stage.free(pages)
            continue
        answers = [attempt(stage, rng_count) for rng_count in [rng.randint(1, 200)] for stage in stages]
        assert answers[0] == answers[1]
        refused += not answers[0]
        held += [answers[0]] if answers[0] else []

    assert refused


def attempt(stage: PageAllocator, count: int) -> list[int]:
    try:
        return stage.allocate(count)
    except TierFull:
        return []
