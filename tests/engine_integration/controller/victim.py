"""A server in a process of its own: serves one long prompt over a file store, and dies at its nth write if told so."""

from __future__ import annotations

import os
import signal
import sys

from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.registry import open_store
from tests.engine_integration.controller.engine import Engine, prompt
from tests.engine_integration.controller.flaky import FlakyStore


def main(path: str, writes: str) -> None:
    """Serve from the store in *path*; kill this process as soon as *writes* writes are done, unless that is ``all``."""
    left = None if writes == "all" else int(writes)

    def wrote(_: str) -> None:
        nonlocal left
        if left is not None:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    with open_store("file", {"path": path}) as inner:
        store = FlakyStore(inner)
        store.on_write = wrote
        options = TierOptions(prefetch_threshold_tokens=4, load_back_threshold_tokens=0)
        engine = Engine(device_pages=132, host_pages=16, store=store, options=options)
        engine.generate(prompt(*range(128), extra=1))
        engine.controller.settle()
        engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
