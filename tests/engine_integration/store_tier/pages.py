"""A scripted L3 for one rank: which pages it has, which reads fail, what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from hicache_storage.engine_integration.store_tier.page_group import PageGroup, Part
from hicache_storage.errors import StoreUnavailable
from hicache_storage.types import ALREADY_THERE, HIT, MISS, STORED, Outcome, failed

PATIENCE_S = 60.0


class ScriptedPages:
    """Holds hashes, no bytes. *before* is called in the worker's thread with the operation and its hashes."""

    def __init__(self, held: Sequence[str] = (), *, before: Callable[[str, Sequence[str]], None] | None = None) -> None:
        self.held = set(held)
        self.unreadable: set[str] = set()
        self.unwritable: set[str] = set()
        self.calls: list[tuple[str, list[str]]] = []
        self.prefixes: list[list[str]] = []
        self._before = before

    def lookup_prefix(self, page_hashes: Sequence[str]) -> int:
        self._called("lookup", page_hashes)
        return next((n for n, name in enumerate(page_hashes) if name not in self.held), len(page_hashes))

    def read_pages(
        self, page_hashes: Sequence[str], pages: Sequence[memoryview], *, prefix: Sequence[str] = ()
    ) -> list[Outcome]:
        assert len(page_hashes) == len(pages)
        self._called("read", page_hashes)
        self.prefixes.append(list(prefix))
        return [HIT if name in self.held and name not in self.unreadable else MISS for name in page_hashes]

    def write_pages(
        self, page_hashes: Sequence[str], pages: Sequence[memoryview], *, prefix: Sequence[str] = ()
    ) -> list[Outcome]:
        assert len(page_hashes) == len(pages)
        self._called("write", page_hashes)
        self.prefixes.append(list(prefix))
        outcomes: list[Outcome] = []
        for name in page_hashes:
            if name in self.unwritable:
                outcomes.append(failed(StoreUnavailable("scripted", backend="test", op="write", key=name)))
            else:
                outcomes.append(ALREADY_THERE if name in self.held else STORED)
                self.held.add(name)
        return outcomes

    def clear(self) -> int:
        count = len(self.held)
        self.held.clear()
        return count

    def group(self) -> PageGroup:
        return PageGroup(Part("kv", self, lambda _: memoryview(b"")))

    def _called(self, operation: str, page_hashes: Sequence[str]) -> None:
        self.calls.append((operation, list(page_hashes)))
        if self._before is not None:
            self._before(operation, page_hashes)


class Gate:
    """Stops a worker at a chosen operation until the test lets it go on."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._reached = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)

    def __call__(self, operation: str, page_hashes: Sequence[str]) -> None:
        if operation == self._operation:
            self._reached.release()
            assert self._go_on.acquire(timeout=PATIENCE_S)

    def wait(self) -> None:
        """Return once the worker stands at the gate."""
        assert self._reached.acquire(timeout=PATIENCE_S)

    def open(self, times: int = 1) -> None:
        self._go_on.release(times)
