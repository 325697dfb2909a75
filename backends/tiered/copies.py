"""Which copies of an object a reader has seen, so that only those go if it finds them damaged."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from hicache_storage.backends.tiered.answers import is_damaged, lacks
from hicache_storage.types import Outcome

_FIRST = frozenset({0})
_NONE: frozenset[int] = frozenset()


class Copies:
    """The stores whose copies were read last, for the keys that were read lately. Thread-safe.

    Args:
        limit: how many keys are remembered.
    """

    def __init__(self, limit: int = 1 << 14) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._read: OrderedDict[str, AbstractSet[int]] = OrderedDict()

    def note(self, read: Mapping[str, AbstractSet[int]]) -> None:
        """Remember for each key the numbers of the stores whose copy has just been read."""
        with self._lock:
            for key, stores in read.items():
                self._read[key] = stores
                self._read.move_to_end(key)
            while len(self._read) > self._limit:
                self._read.popitem(last=False)

    def of(self, key: str) -> AbstractSet[int] | None:
        """Return the stores whose copy of *key* was read last; None if that is not known."""
        with self._lock:
            return self._read.get(key)


def copies_read(said: Sequence[Outcome]) -> AbstractSet[int]:
    """Return the stores whose copies of an object a read came upon, by what they said in turn.

    The one that served it, and those above that lacked it: what they have by now was copied from it. If none
    served it, those whose copy was damaged.
    """
    if said[-1]:
        above = said[:-1]
        return _FIRST if not above else {len(above), *(number for number, answer in enumerate(above) if lacks(answer))}
    return {number for number, answer in enumerate(said) if is_damaged(answer)} or _NONE
