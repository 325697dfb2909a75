"""The one place where a store's failure becomes an outcome, counted by cause and logged rarely.

Everything odd that a backend does (an error, a bug of its own, too few answers) fails the requests it was
asked and nothing else. What the page store makes of a failed request, a miss or a page that is not stored, is
decided by who asked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from hicache_storage import telemetry
from hicache_storage.errors import CorruptObject, LayoutError, RangeError, StoreError
from hicache_storage.store import ObjectStore
from hicache_storage.telemetry import Counters, RareWarnings
from hicache_storage.types import ObjectWrite, Outcome, RangeRead, failed

T = TypeVar("T")

_log = logging.getLogger(__name__)

_DONE = "done"

DAMAGE = (CorruptObject, RangeError)
"""What says that an object is there and is not what was written."""


class GuardedStore:
    """The batches of *store*, with one outcome for each request whatever happens; *store* itself is `bare`."""

    def __init__(self, store: ObjectStore, counters: Counters) -> None:
        self.bare = store
        self.counters = counters
        self.name = store.name
        self._warnings = RareWarnings(_log)

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        return self._attempt("read", len(reads), partial(self.bare.read_many, reads))

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        return self._attempt("write", len(writes), partial(self.bare.write_many, writes))

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._attempt("exists", len(keys), partial(self.bare.exists_many, keys))

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._attempt("delete", len(keys), partial(self.bare.delete_many, keys))

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        return self._attempt("touch", len(keys), partial(self.bare.touch_many, keys))

    def quarantine(self, key: str) -> bool:
        """Do what the store does, with no error but a `StoreError`."""
        return self.single("quarantine", partial(self.bare.quarantine, key))

    def single(self, op: str, call: Callable[[], T]) -> T:
        """Return what *call* does; a fault that no backend may have becomes a `StoreError`, `LayoutError` passes."""
        began_s = time.monotonic()
        result = _DONE
        try:
            return call()
        except StoreError as error:
            result = type(error).__name__
            raise
        except LayoutError:
            raise
        except Exception as error:
            result = StoreError.__name__
            raise self._unforeseen(op, error) from error
        finally:
            self._observe(op, result, began_s)

    def count_failure(self, what: str, outcome: Outcome) -> None:
        """Count *outcome* under ``{what}.{cause}`` if it is a failure, and warn of it unless it is one object's damage."""
        if outcome.error is None:
            return
        cause = f"{what}.{type(outcome.error).__name__}"
        self.counters.add(cause)
        if not isinstance(outcome.error, DAMAGE):
            self.warn(cause, "store.%s backend=%s %s", what, self.name, outcome.error)

    def warn(self, cause: str, event: str, *args: object) -> None:
        """Log *event* unless *cause* was logged within the last minute."""
        self._warnings.warn(cause, event, *args)

    def _attempt(self, op: str, expected: int, call: Callable[[], list[Outcome]]) -> list[Outcome]:
        """Return the store's outcomes; whatever goes wrong with the whole batch fails each request of it."""
        began_s = time.monotonic()
        outcomes = self._outcomes(op, expected, call)
        failure = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        self._observe(op, _DONE if failure is None else type(failure).__name__, began_s)
        return outcomes

    def _outcomes(self, op: str, expected: int, call: Callable[[], list[Outcome]]) -> list[Outcome]:
        try:
            outcomes = call()
        except StoreError as error:
            return [failed(error)] * expected
        except Exception as error:  # noqa: BLE001 - the one place where any fault of a backend becomes a miss
            return [failed(self._unforeseen(op, error))] * expected
        if len(outcomes) != expected:
            reason = f"{len(outcomes)} outcomes for {expected} requests"
            return [failed(StoreError(reason, backend=self.name, op=op))] * expected
        return outcomes

    def _observe(self, op: str, result: str, began_s: float) -> None:
        """Count how long a call took, by what became of it: what refuses and what is silent differ in nothing else."""
        self.counters.observe(f"{telemetry.STORE_CALL}.{op}.{result}", time.monotonic() - began_s)

    def _unforeseen(self, op: str, error: Exception) -> StoreError:
        cause = type(error).__name__
        self._warnings.warn(f"{op}.{cause}", "store.unforeseen backend=%s op=%s", self.name, op, exc_info=True)
        return StoreError(f"{cause}: {error}", backend=self.name, op=op)
