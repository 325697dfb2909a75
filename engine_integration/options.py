"""The tiers' options, with the names and defaults that engines use, checked one by one and together.

Source: the article's flags and SGLang 0.5.23's defaults, docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hicache_storage.config import check_fields, option, parse_nbytes, parse_seconds, whole_number
from hicache_storage.errors import ConfigError

WritePolicy: TypeAlias = Literal["write_through", "write_through_selective", "write_back"]
PrefetchPolicy: TypeAlias = Literal["best_effort", "wait_complete", "timeout"]
EvictionPolicy: TypeAlias = Literal["lru", "lfu", "slru"]

WRITE_POLICIES: tuple[WritePolicy, ...] = ("write_through", "write_through_selective", "write_back")
PREFETCH_POLICIES: tuple[PrefetchPolicy, ...] = ("best_effort", "wait_complete", "timeout")
EVICTION_POLICIES: tuple[EvictionPolicy, ...] = ("lru", "lfu", "slru")

_MOST = 1 << 40
_TOKENS_PER_KI = 1024


def _one_of(names: tuple[str, ...]) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in names or not isinstance(value, str):
            raise ValueError(f"expected {' or '.join(names)}")
        return value

    return parse


def _fraction(value: object) -> float:
    number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    if not 0 < number <= 1:
        raise ValueError("expected a number above 0 and at most 1")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """How KV moves between device (L1), host (L2) and store (L3)."""

    write_policy: WritePolicy = option(
        "write_through",
        doc="when a prefix is copied to the host: at its first use, at its second, or when the device evicts it",
        parse=_one_of(WRITE_POLICIES),
        aliases=("hicache_write_policy",),
    )
    selective_hits: int = option(
        2, doc="uses after which write_through_selective copies a prefix", parse=whole_number(1, _MOST)
    )
    eviction_policy: EvictionPolicy = option(
        "lru", doc="which prefix the device gives up first", parse=_one_of(EVICTION_POLICIES)
    )
    host_eviction_policy: EvictionPolicy = option(
        "lru", doc="which prefix the host gives up first", parse=_one_of(EVICTION_POLICIES)
    )
    load_back_threshold_tokens: int = option(
        10,
        doc="host hits shorter than this are computed again",
        parse=whole_number(0, _MOST),
        aliases=("load_back_threshold",),
    )
    prefetch_policy: PrefetchPolicy = option(
        "timeout",
        doc="how long a request waits for L3: not at all, until all is there, or until a timeout by its length",
        parse=_one_of(PREFETCH_POLICIES),
        aliases=("hicache_storage_prefetch_policy",),
    )
    prefetch_threshold_tokens: int = option(
        256,
        doc="prompts whose part that is not cached is shorter do not ask L3",
        parse=whole_number(0, _MOST),
        aliases=("prefetch_threshold",),
    )
    prefetch_timeout_base_s: float = option(
        1.0, doc="seconds that any prefetch may take", parse=parse_seconds, aliases=("prefetch_timeout_base",)
    )
    prefetch_timeout_per_ki_token_s: float = option(
        0.25,
        doc="seconds added for 1,024 tokens of the prefetch",
        parse=parse_seconds,
        aliases=("prefetch_timeout_per_ki_token",),
    )
    prefetch_host_fraction: float = option(
        0.5, doc="largest share of the host pool that prefetches in flight may hold", parse=_fraction
    )
    store_batch_pages: int = option(
        128,
        doc="pages that are read from L3 between two agreements on what has arrived",
        parse=whole_number(1, 1 << 20),
    )
    store_retries: int = option(
        3, doc="times that a failed L3 write of a prefix is tried again later", parse=whole_number(0, 1000)
    )
    store_backpressure: bool = option(
        True,  # noqa: FBT003 - the default
        doc="wait for L3 writes rather than evict what no other tier has; false loses such pages instead",
    )
    fetch_or_recompute: bool = option(
        False,  # noqa: FBT003 - the default
        doc="skip an L3 fetch that is expected to take longer than computing the tokens",
    )
    prefill_tokens_per_s: float | None = option(
        None, doc="speed of prefill, for fetch_or_recompute", parse=parse_seconds
    )
    host_nbytes: int | None = option(
        None, doc="bytes of the host pool of each rank", parse=parse_nbytes, aliases=("hicache_size",)
    )
    host_ratio: float | None = option(
        None, doc="host pages for each device page", parse=parse_seconds, aliases=("hicache_ratio",)
    )
    host_memory_fraction: float | None = option(
        None,
        doc="share of the memory that machine and cgroup allow, for the host pools of all ranks together",
        parse=_fraction,
        aliases=("hicache_host_memory_fraction",),
    )

    def __post_init__(self) -> None:
        check_fields(self, "tier")
        sizes = ("host_nbytes", "host_ratio", "host_memory_fraction")
        given = [f"{name} = {getattr(self, name)}" for name in sizes if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)}: the host pool has one size; give one of them")
        if self.fetch_or_recompute and self.prefill_tokens_per_s is None:
            raise ConfigError("fetch_or_recompute needs prefill_tokens_per_s, the speed it weighs the store against")

    @property
    def backup_hits(self) -> int | None:
        """Uses after which a prefix is copied to the host; None for write_back, which waits for eviction."""
        return {"write_through": 1, "write_through_selective": self.selective_hits}.get(self.write_policy)

    def prefetch_timeout_s(self, tokens: int) -> float | None:
        """Return how long a request may wait for a prefetch of *tokens*; None without limit."""
        if self.prefetch_policy == "wait_complete":
            return None
        if self.prefetch_policy == "best_effort":
            return 0.0
        return self.prefetch_timeout_base_s + self.prefetch_timeout_per_ki_token_s * tokens / _TOKENS_PER_KI
