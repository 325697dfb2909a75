"""Which pages a store that evicts by use should keep: the front of every prefix.

A prefix is worth what its longest gapless beginning is worth. A store that evicts the least recently used
object first would begin with page 0, which was written and read first. So after each use the objects are
touched from the last page to the first: page 0 is the most recently used, and a prefix is eaten from its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from hicache_storage import telemetry
from hicache_storage.engine_integration.page_store.guarded import GuardedStore
from hicache_storage.middleware.layer import Layer
from hicache_storage.store import ObjectStore
from hicache_storage.types import Status

_TOUCHES_PER_CALL = 1024


class Recency:
    """Touches what a rank uses of its pages, in stores that can tell a touch from a look.

    Args:
        tails: what follows the page hash in the keys of a page's objects.
        description_key: the namespace's description, which is used whenever a page is.

    Attributes:
        is_kept: whether the backend below all layers has a `touch_many` of its own.
    """

    def __init__(self, store: GuardedStore, tails: Sequence[str], description_key: str) -> None:
        self.is_kept = _has_its_own_touch(store.bare)
        self._store = store
        self._tails = tails
        self._description_key = description_key

    def refresh(self, page_hashes: Sequence[str]) -> int:
        """Count the pages of a prefix as used now, the first one last; return how many leading ones are still there.

        Args:
            page_hashes: a prefix from the first page of its request on.

        Cost: one touch for each object; none, and the answer "all", where recency is not kept.
            A failure is counted and counts as "there".
        """
        if not page_hashes or not self.is_kept:
            return len(page_hashes)
        keys = [page_hash + tail for page_hash in reversed(page_hashes) for tail in self._tails]
        keys.append(self._description_key)
        present = len(page_hashes)
        for start in range(0, len(keys), _TOUCHES_PER_CALL):
            for index, outcome in enumerate(self._store.touch_many(keys[start : start + _TOUCHES_PER_CALL]), start):
                if outcome.status is Status.MISS and index < len(keys) - 1:
                    present = len(page_hashes) - 1 - index // len(self._tails)
                else:
                    self._store.count_failure(telemetry.TOUCH_FAILED, outcome)
        return present


def _has_its_own_touch(store: ObjectStore) -> bool:
    while isinstance(store, Layer):
        store = store.inner
    return type(store).touch_many is not ObjectStore.touch_many
