"""L2 to L3: host pages written by a thread of its own; what every rank has stored is agreed. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache_storage import telemetry
from hicache_storage.engine_integration.parallel.agree import Group, agree_min
from hicache_storage.engine_integration.store_tier.acks import AckQueue
from hicache_storage.engine_integration.store_tier.page_group import PageGroup
from hicache_storage.engine_integration.store_tier.worker import Worker
from hicache_storage.telemetry import Counters


@dataclass(slots=True, eq=False)
class Write:
    """A run of pages to be stored, on one rank.

    Attributes:
        page_hashes: the pages, in prefix order.
        host_pages: where their bytes are, unchanged until the acknowledgement was taken.
        prefix: hashes of the pages in front, from the sequence's first one on.
        follows: an earlier write, with the page in front of the first one. Unless that write stores all of its
            pages, this one stores nothing, so that no page is stored behind a gap.
        is_stored: every rank has stored all of it; set by the thread that writes.
    """

    page_hashes: Sequence[str]
    host_pages: Sequence[int]
    prefix: Sequence[str] = ()
    follows: Write | None = None
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """How a write ended, the same on every rank.

    Attributes:
        pages: leading pages that every rank has in the store.
    """

    write: Write
    pages: int

    @property
    def identity(self) -> str:
        """What every rank has taken when it has taken this one."""
        hashes = self.write.page_hashes
        return f"written {hashes[0][:16]}+{len(hashes)} {self.pages}"


class Writeback:
    """Writes in the order of submission, which is prefix order, so that the store's content is prefix-closed.

    Args:
        pages: where this rank's pages go.
        group: the ranks that agree.
        patience_s: how long this rank may be late with an acknowledgement that others have.
    """

    def __init__(self, pages: PageGroup, *, group: Group, counters: Counters, patience_s: float = 0.0) -> None:
        self.written: AckQueue[Written] = AckQueue("L3 writes", rank=group.rank, patience_s=patience_s)
        self._pages = pages
        self._group = group
        self._counters = counters
        self._writes = Worker("hicache-writeback", self._write, self._write_failed)

    def write(self, write: Write) -> None:
        """Store *write*; a `Written` follows."""
        self._writes.submit(write)

    def close(self, timeout_s: float | None = None) -> bool:
        """Finish what was submitted and end the thread; return whether it ended within *timeout_s*."""
        return self._writes.close(timeout_s)

    def _write(self, write: Write) -> None:
        follows, write.follows = write.follows, None
        pages = 0
        # What an earlier write has stored is agreed, so every rank leaves this one out or none does.
        if follows is None or follows.is_stored:
            pages = agree_min(self._group, "L3 write", lambda: self._store(write))
        write.is_stored = pages == len(write.page_hashes)
        self.written.put(Written(write, pages))

    def _store(self, write: Write) -> int:
        return self._pages.write(write.page_hashes, write.host_pages, write.prefix)

    def _write_failed(self, write: Write, error: BaseException) -> None:
        self._counters.add(f"{telemetry.WRITEBACK_FAILED}.{type(error).__name__}")
        self.written.put(Written(write, 0))
