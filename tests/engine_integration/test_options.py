"""The tiers' options: each value checked, and all of them together."""

from __future__ import annotations

import pytest

from hicache_storage.config import from_mapping, resolve
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.errors import ConfigError


def test_defaults_are_those_that_engines_use() -> None:
    options = TierOptions()

    assert (options.write_policy, options.prefetch_policy) == ("write_through", "timeout")
    assert options.prefetch_threshold_tokens == 256
    assert options.prefetch_timeout_s(4096) == 2.0
    assert not options.fetch_or_recompute


def test_engines_names_are_understood() -> None:
    given = {"hicache_write_policy": "write_back", "prefetch_timeout_base": "2", "hicache_size": "1GiB"}

    options, _ = resolve(TierOptions, "tier", [from_mapping(given, "flags")], environ={})

    assert (options.write_policy, options.prefetch_timeout_base_s, options.host_nbytes) == ("write_back", 2.0, 1 << 30)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("write_policy", "write_around"),
        ("prefetch_policy", "never"),
        ("eviction_policy", "fifo"),
        ("prefetch_host_fraction", 0),
        ("prefetch_host_fraction", 1.5),
        ("prefetch_timeout_base_s", -1),
        ("store_batch_pages", 0),
        ("host_memory_fraction", True),
    ],
)
def test_a_wrong_value_names_itself(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        TierOptions(**{field: value})  # type: ignore[arg-type]


def test_the_host_pool_has_one_size() -> None:
    with pytest.raises(ConfigError, match=r"host_nbytes = 5 and host_ratio = 2\.0"):
        TierOptions(host_nbytes=5, host_ratio=2.0)


def test_weighing_fetch_against_prefill_needs_the_speed_of_prefill() -> None:
    with pytest.raises(ConfigError, match="prefill_tokens_per_s"):
        TierOptions(fetch_or_recompute=True)


@pytest.mark.parametrize(
    ("policy", "uses"), [("write_through", 1), ("write_through_selective", 2), ("write_back", None)]
)
def test_write_policies_differ_in_the_uses_they_wait_for(policy: str, uses: int | None) -> None:
    assert TierOptions(write_policy=policy).backup_hits == uses  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "seconds"), [("best_effort", 0.0), ("wait_complete", None), ("timeout", 1.25)])
def test_prefetch_policies_differ_in_how_long_they_wait(policy: str, seconds: float | None) -> None:
    assert TierOptions(prefetch_policy=policy).prefetch_timeout_s(1024) == seconds  # type: ignore[arg-type]
