"""Stores that are made of others, and what the layers ``metrics`` anywhere inside a store have counted."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence

from hicache_storage.middleware.layer import Layer
from hicache_storage.middleware.metrics import MetricsLayer
from hicache_storage.store import ObjectStore

_MOST_PARTS = 16
_OTHERS = "others"
"""The name of all parts that have none of their own."""


class ComposedStore(ObjectStore):
    """A store that is made of others."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[ObjectStore]:
        """The stores, with their layers, always in the same order."""


def store_counts(store: ObjectStore) -> Counter[str]:
    """Return what the layers ``metrics`` around *store* and around all its parts have counted.

    Names are those of `StoreMetrics.counts`. A part is called by its number, from 0 on, and a part of a part ``1/0``.
    As metrics have these as labels, they are few: parts from number 16 on, and those deeper inside, are together ``others``.
    Of two such layers around one store the outer counts.
    """
    return _counts(store, "")


def _counts(store: ObjectStore, part: str) -> Counter[str]:
    found: Counter[str] = Counter()
    while isinstance(store, Layer):
        if isinstance(store, MetricsLayer) and not found:
            found.update(store.metrics.counts(part))
        store = store.inner
    if isinstance(store, ComposedStore):
        for number, inner in enumerate(store.parts):
            found.update(_counts(inner, _name(part, number)))
    return found


def _name(outer: str, number: int) -> str:
    if outer == _OTHERS or "/" in outer or number >= _MOST_PARTS:
        return _OTHERS
    return f"{outer}/{number}" if outer else f"{number}"
