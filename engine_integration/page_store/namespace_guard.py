"""Whether this deployment may use its namespace, and that the namespace's description is in the store."""

from __future__ import annotations

from hicache_storage import telemetry
from hicache_storage.engine_integration.page_store.descriptor import Descriptor, read_descriptor
from hicache_storage.engine_integration.page_store.guarded import GuardedStore
from hicache_storage.errors import LayoutError, StoreError, Unsupported
from hicache_storage.types import failed


class NamespaceGuard:
    """Turns a deployment away from a namespace that is another model's. Thread-safe.

    The description is asked for until one was found that matches, from then on only after each write and before
    anything is discarded. So reading pays nothing, a description that somebody removed is left again by the next
    writer, and nobody discards objects of a namespace that meanwhile became another model's.
    """

    def __init__(self, store: GuardedStore, descriptor: Descriptor) -> None:
        self.key = descriptor.key
        self._store = store
        self._descriptor = descriptor
        self._admitted = False

    def refusal(self) -> StoreError | None:
        """Return why this deployment must not use the namespace, None if it may.

        While there is no description, or the store cannot answer, nothing is refused.
        """
        return None if self._admitted else self._ask()

    def describe(self) -> StoreError | None:
        """Leave the namespace's description in the store before its first page; refuse if another's is there."""
        if self._admitted:
            return None
        try:
            self._store.single("write", self._leave_description)
        except StoreError as error:
            self._store.count_failure(telemetry.WRITE_FAILED, failed(error))
            return error
        return self._ask()

    def confirm_description(self) -> None:
        """After a write: the description is there, also if somebody cleared the namespace while we wrote.

        If another model's is there, the next use is refused. Failures are counted.
        """
        if self._ask() is None:
            self.describe()

    def may_discard(self) -> bool:
        """Return whether the store says, now, that the namespace is ours.

        Otherwise what looks like damage may be our own wrong idea of the object.
        """
        self._ask()
        return self._admitted

    def forget(self) -> None:
        """The description was removed: the next use asks for it again."""
        self._admitted = False

    def _ask(self) -> StoreError | None:
        """Read the description and remember whether it admits us; return why it does not, if it contradicts us."""
        admitted = False
        try:
            found = self._store.single("open", lambda: read_descriptor(self._store.bare, self._descriptor.digest))
            conflict = None if found is None else self._descriptor.conflict(found)
            admitted = found is not None and conflict is None
        except LayoutError as error:
            digest = self._descriptor.digest
            self._store.warn("descriptor", "namespace.unreadable digest=%s reason=%s", digest, error)
            return None
        except StoreError as error:
            self._store.count_failure(telemetry.LOOKUP_FAILED, failed(error))
            return None
        finally:
            self._admitted = admitted
        return None if conflict is None else self._conflict(conflict)

    def _conflict(self, conflict: str) -> Unsupported:
        self._store.counters.add(telemetry.NAMESPACE_CONFLICTS)
        self._store.warn("conflict", "namespace.conflict %s", conflict)
        return Unsupported(conflict, backend=self._store.name, op="open", key=self.key)

    def _leave_description(self) -> None:
        store = self._store.bare
        try:
            if read_descriptor(store, self._descriptor.digest) is not None:
                return
        except LayoutError:
            store.quarantine(self.key)
        store.write(self.key, [self._descriptor.encode()])
