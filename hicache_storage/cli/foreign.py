"""Backends of others: a network or a disk that fails them is not taken for trouble of the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hicache_storage.errors import StoreError
from hicache_storage.middleware.layer import Layer
from hicache_storage.registry import ResolvedStore
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectInfo, ObjectWrite, Outcome, RangeRead

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", RangeRead, ObjectWrite, str)


def open_store_of(target: ResolvedStore, *, looking: bool = False, evicting: bool = True) -> ObjectStore:
    """Return the open store, which raises no OSError; the rest is as `ResolvedStore.open`."""
    with _translated(target.backend, "open"):
        return SystemErrors(target.open(looking=looking, evicting=evicting))


class SystemErrors(Layer):
    """Raises an OSError that a backend lets through as a `StoreError`.

    As it is, the command line would take it for trouble with its own output, and a BrokenPipeError for a reader
    who has seen enough. Other exceptions are bugs and stay what they are.
    """

    def single(self, op: str, key: str, call: Callable[[], T]) -> T:
        with _translated(self.name, op, key):
            return call()

    def batch(self, op: str, requests: Sequence[R], call: Callable[[Sequence[R]], list[Outcome]]) -> list[Outcome]:
        with _translated(self.name, op):
            return call(requests)

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with _translated(self.name, "list"):
            yield from self.inner.list_keys(prefix)

    def close(self) -> None:
        with _translated(self.name, "close"):
            self.inner.close()


@contextmanager
def _translated(backend: str, op: str, key: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log.info("store.system_error backend=%s op=%s", backend, op, exc_info=error)
        reason = f"{type(error).__name__}: {error}; the backend lets it through, -v shows where"
        raise StoreError(reason, backend=backend, op=op, key=key) from error
