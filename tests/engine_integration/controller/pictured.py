"""A rank in a process of its own that takes random steps, and a digest of its tree after each of them."""

from __future__ import annotations

import random
import sys

from xxhash import xxh3_64_hexdigest

from hicache_storage.engine_integration.options import EVICTION_POLICIES, TierOptions
from hicache_storage.testing.memory import MemoryStore
from tests.engine_integration.controller.engine import Engine
from tests.engine_integration.controller.walk import Walk, picture

STEPS = 120


def main() -> None:
    """Print a line for each step, over every eviction policy. Nothing is left to timing: each step waits for all that it began."""
    for number, policy in enumerate(EVICTION_POLICIES):
        options = TierOptions(
            eviction_policy=policy,
            host_eviction_policy=policy,
            prefetch_policy="wait_complete",
            prefetch_threshold_tokens=4,
            load_back_threshold_tokens=0,
        )
        engine = Engine(device_pages=26, host_pages=22, options=options)
        walk = Walk(engine, number, MemoryStore(), own=random.Random(number))
        for _ in range(STEPS):
            walk.step()
            walk.settle()
            sys.stdout.write(xxh3_64_hexdigest(repr(picture(engine)).encode()) + "\n")
        walk.close()


if __name__ == "__main__":
    main()
