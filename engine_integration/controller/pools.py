"""The tiers that an engine owns: their books, and whoever moves bytes between them. Torch-free.

`transfer.Backup` and `transfer.Load` are the real ones; `NoCopies` stands for both where pages have no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hicache_storage.engine_integration.tiers.slots import PageAllocator


class CopyJob(Protocol):
    """A submitted copy. It ends once, in the order of submission."""

    @property
    def error(self) -> Exception | None: ...

    def done(self) -> bool: ...

    def wait(self, timeout_s: float | None = None) -> bool: ...


class LayerWaits(Protocol):
    """Waits for single layers of a load."""

    def wait(self, layer: int, timeout_s: float | None = None) -> None: ...


class LoadJob(CopyJob, Protocol):
    """A submitted load, whose layers arrive one by one."""

    @property
    def layers(self) -> LayerWaits: ...


class BackupCopies(Protocol):
    """Device to host."""

    def submit(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> CopyJob: ...


class LoadCopies(Protocol):
    """Host to device."""

    def submit(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> LoadJob: ...


class _NoLayers:
    def wait(self, layer: int, timeout_s: float | None = None) -> None:
        """Return at once."""


class _Copied:
    """A copy of no bytes: done when it begins, with every layer in place."""

    error: Exception | None = None

    def __init__(self) -> None:
        self.layers = _NoLayers()

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002 - nothing to wait for
        return True


class NoCopies:
    """Copies for pages that have no bytes, as in a simulation."""

    def submit(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> _Copied:  # noqa: ARG002
        return _Copied()


@dataclass(frozen=True, slots=True)
class Pools:
    """The tiers of one rank.

    Attributes:
        device, host: whose page is whose. Every rank has the same capacity, so that every rank has room for the same.
        backup, load: what copies between them.
    """

    device: PageAllocator
    host: PageAllocator
    backup: BackupCopies = field(default_factory=NoCopies)
    load: LoadCopies = field(default_factory=NoCopies)
