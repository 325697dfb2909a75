"""What a replay has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hicache_storage import telemetry
from hicache_storage.engine_integration.controller import CachedTokens

_EVICTED = {"device": telemetry.DEVICE_PAGES_EVICTED, "host": telemetry.HOST_PAGES_EVICTED}


@dataclass(frozen=True, slots=True)
class Served:
    """What became of one request.

    Attributes:
        instance: which one served it, by number.
        cached: None if it was refused: the device is too small for it.
        reusable: tokens that a cache which keeps everything would have had.
    """

    instance: int
    prompt_tokens: int
    cached: CachedTokens | None
    reusable: int


@dataclass(frozen=True, slots=True)
class Moved:
    """Pages and bytes that went one way."""

    pages: int = 0
    nbytes: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.pages + other.pages, self.nbytes + other.nbytes)


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """One instance, or several as one.

    Attributes:
        num_refused: requests among *num_requests* that the device was too small for.
        prompt_tokens: of the requests that were served.
        evicted: pages by tier, ``device`` and ``host``.
        moved: by way, ``device -> host`` and so on.
        prefetches: requests by what became of asking L3.
        num_judged, num_wrong: pages that were compared byte for byte, on each rank; 0 without bytes.
    """

    name: str
    num_requests: int
    num_refused: int
    prompt_tokens: int
    cached: CachedTokens
    evicted: Mapping[str, int]
    moved: Mapping[str, Moved]
    prefetches: Mapping[str, int]
    num_judged: int
    num_wrong: int


@dataclass(frozen=True, slots=True)
class Report:
    """A whole replay.

    Attributes:
        reusable_tokens: what a cache that keeps everything would have reused of the whole trace.
        store_pages, store_evicted: pages that L3 holds at the end and has evicted; None where a real store has them.
    """

    instances: Sequence[InstanceReport]
    reusable_tokens: int
    store_pages: int | None
    store_evicted: int | None

    @property
    def total(self) -> InstanceReport:
        """All instances as one."""
        each = self.instances
        return InstanceReport(
            name="all",
            num_requests=sum(one.num_requests for one in each),
            num_refused=sum(one.num_refused for one in each),
            prompt_tokens=sum(one.prompt_tokens for one in each),
            cached=_total_cached([one.cached for one in each]),
            evicted=_counted([one.evicted for one in each]),
            moved={way: sum((one.moved[way] for one in each), Moved()) for way in each[0].moved},
            prefetches=_counted([one.prefetches for one in each]),
            num_judged=sum(one.num_judged for one in each),
            num_wrong=sum(one.num_wrong for one in each),
        )


def report_of(
    name: str, served: Sequence[Served], counts: Mapping[str, int], page_nbytes: int, judged: tuple[int, int] = (0, 0)
) -> InstanceReport:
    """Return the report of an instance.

    Args:
        counts: its controller's and its L3 client's.
        page_nbytes: of a page over all its ranks.
        judged: pages that were compared, and those of them that were wrong.
    """
    answered = [one for one in served if one.cached is not None]
    return InstanceReport(
        name=name,
        num_requests=len(served),
        num_refused=len(served) - len(answered),
        prompt_tokens=sum(one.prompt_tokens for one in answered),
        cached=_total_cached([one.cached for one in answered if one.cached is not None]),
        evicted={tier: counts.get(name, 0) for tier, name in _EVICTED.items()},
        moved=_moved(counts, page_nbytes),
        prefetches=_prefetches(counts, len(served)),
        num_judged=judged[0],
        num_wrong=judged[1],
    )


def _moved(counts: Mapping[str, int], page_nbytes: int) -> dict[str, Moved]:
    def copied(name: str) -> Moved:
        pages = counts.get(name, 0)
        return Moved(pages, pages * page_nbytes)

    return {
        "device -> host": copied(telemetry.PAGES_BACKED_UP),
        "host -> device": copied(telemetry.PAGES_LOADED),
        "host -> store": Moved(counts.get(telemetry.PAGES_WRITTEN_BACK, 0), counts.get(telemetry.NBYTES_STORED, 0)),
        "store -> host": Moved(counts.get(telemetry.PAGES_PREFETCHED, 0), counts.get(telemetry.NBYTES_READ, 0)),
    }


def _prefetches(counts: Mapping[str, int], num_requests: int) -> dict[str, int]:
    """Return what became of each request's question to L3: those that have read something first, then by cause."""
    prefixes = ("prefetch_declined.", telemetry.PREFETCH_MISSED, f"{telemetry.PREFETCH_FAILED}.")
    causes = {
        name.removeprefix("prefetch_"): count for name, count in sorted(counts.items()) if name.startswith(prefixes)
    }
    return {"read": num_requests - sum(causes.values())} | causes


def _total_cached(each: Sequence[CachedTokens]) -> CachedTokens:
    return CachedTokens(
        device=sum(one.device for one in each),
        host=sum(one.host for one in each),
        store=sum(one.store for one in each),
    )


def _counted(each: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for one in each for name in one)
    return {name: sum(one.get(name, 0) for one in each) for name in names}
