"""What the tiers of all ranks must have in common, so that equal calls lead to equal decisions. Torch-free."""

from __future__ import annotations

from dataclasses import asdict
from zlib import crc32

from hicache_storage.engine_integration.controller.pools import Pools
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.parallel.pp import StepSync

_OWN = frozenset({"host_nbytes", "host_ratio", "host_memory_fraction"})
"""How the host pool got its size is each rank's own affair; the sizes themselves are compared."""


def agree_alike(sync: StepSync, page_tokens: int, pools: Pools, options: TierOptions) -> None:
    """Raise unless every rank's tiers have the same room and decide by the same options. Every rank calls it.

    Raises:
        RankFailure: as `StepSync.same` does; it names what differs. Of options that are no integers it gives digests.
    """
    facts: dict[str, object] = {
        "page_tokens": page_tokens,
        "device_pages": pools.device.capacity,
        "host_pages": pools.host.capacity,
    }
    facts |= {name: value for name, value in asdict(options).items() if name not in _OWN}
    sync.same("tiers", [_number(value) for value in facts.values()], names=list(facts))


def _number(value: object) -> int:
    return value if isinstance(value, int) else crc32(repr(value).encode())
