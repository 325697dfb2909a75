"""Making one copy, and deciding which stores are worth copying to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from hicache_storage.backends.tiered.background import Background, Copy
from hicache_storage.backends.tiered.options import TieredOptions
from hicache_storage.errors import StoreError
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import Counters, RareWarnings

COPIED = "copied"
COPIES_DROPPED = "copies_dropped"
COPY_FAILED = "copy_failed"
"""Prefix of the counters by cause: ``copy_failed.StoreFull``, ..."""

_REST_S = 5.0
"""How long nothing is promoted to a store that refused a promotion: a full one would cost a read of each object for nothing."""

_log = logging.getLogger(__name__)


class Copier:
    """Copies whole objects between *tiers* in the background; a copy that fails is counted and forgotten.

    Args:
        counters: where copies are counted.
        clock: monotonic seconds; replaced in tests.
    """

    def __init__(
        self,
        tiers: Sequence[ObjectStore],
        options: TieredOptions,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tiers = tiers
        self._counters = counters
        self._clock = clock
        self._rests_until = [0.0] * len(tiers)
        self._warnings = RareWarnings(_log)
        self.background = Background(self._perform, threads=options.background_threads, limit=options.background_jobs)

    def promote(self, key: str, nbytes: int, source: int, targets: Sequence[int]) -> None:
        """The object will be copied to those *targets* that did not refuse one lately, if there is room in the queue."""
        now = self._clock()
        willing = tuple(target for target in targets if self._rests_until[target] <= now)
        if willing:
            self._submit(Copy(key, nbytes, source, willing, is_write=False))

    def finish_write(self, key: str, nbytes: int, source: int) -> None:
        """The object will be copied to every store below *source*, if there is room in the queue."""
        targets = tuple(range(source + 1, len(self._tiers)))
        if targets and not self._submit(Copy(key, nbytes, source, targets, is_write=True)):
            self._warnings.warn("dropped", "tiered.copy_dropped key=%s: the queue is full; it is not below", key)

    def _submit(self, copy: Copy) -> bool:
        taken = self.background.submit(copy)
        self._counters.add(COPIES_DROPPED, not taken)
        return taken

    def _perform(self, copy: Copy) -> None:
        try:
            body = bytearray(copy.nbytes)
            found = self._tiers[copy.source].read_into(copy.key, 0, [body], object_nbytes=copy.nbytes)
        except BaseException as error:  # noqa: BLE001 - whatever a backend raises, an SDK's panic too: the thread lives
            self._failed(copy, copy.source, error)
            return
        if not found:
            self._counters.add(COPIES_DROPPED)
            return
        for target in copy.targets:
            try:
                self._tiers[target].write(copy.key, [body])
                self._counters.add(COPIED)
            except BaseException as error:  # noqa: BLE001 - as above
                self._rests_until[target] = self._clock() + _REST_S
                self._failed(copy, target, error)

    def _failed(self, copy: Copy, tier: int, error: BaseException) -> None:
        cause = f"{COPY_FAILED}.{type(error).__name__}"
        self._counters.add(cause)
        self._warnings.warn(
            f"{tier}.{cause}",
            "tiered.copy_failed tier=%d backend=%s key=%s %s",
            tier,
            self._tiers[tier].name,
            copy.key,
            error,
            exc_info=not isinstance(error, StoreError),
        )
