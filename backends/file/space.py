"""How files come into a store's folder and leave it: without a limit, or with books and a capacity.

`Space` does only what the operation needs. `CountedSpace` does the same with the books locked around every
step that changes what the folder takes: room is reserved before the first byte is written and given back when
a file goes, so the files of all instances and processes never take more than the capacity. Counted are
objects, companions, temporary and quarantined files, each rounded up to 4 KiB; folders are not.

An instance without a capacity may have the folder open before the first one with a capacity counts it. It looks
at the ledger before each operation, from then on with books of its own, and after each change that it made without
them: if somebody has begun to keep books meanwhile, only a new count can tell whether the change is in them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hicache_storage.backends.file.drafts import Draft, Drafts, discard, replace
from hicache_storage.backends.file.errors import BACKEND
from hicache_storage.backends.file.evict import Evictor
from hicache_storage.backends.file.folder import Folder, remove_any, unlink_file
from hicache_storage.backends.file.ledger import Account, Ledger, charge_at, charge_of
from hicache_storage.backends.file.names import COMPANION_SUFFIX, is_hashed
from hicache_storage.backends.file.options import FileOptions
from hicache_storage.backends.file.temps import Temp, orphans
from hicache_storage.backends.file.walk import scan
from hicache_storage.errors import StoreFull

_log = logging.getLogger(__name__)


class Space:
    """The folder of a store that keeps no books, because nobody who has it open has a capacity.

    Paths of objects are absolute; ``hashed`` ones have a companion, which comes and goes with them
    under the ledger's lock.
    """

    tracks_use = False
    """Whether reads set the objects' times, because eviction goes by them."""

    writable = True
    """Whether anything in the folder may change."""

    capacity_nbytes: int | None = None
    """The most that the folder's files may take; None = no limit of this instance."""

    def __init__(self, folder: Folder, *, quarantine_count: int, evictor: Evictor) -> None:
        self._folder = folder
        self._quarantine_count = quarantine_count
        self._evictor = evictor
        self._ledger = Ledger(folder.ledger)
        self._drafts = Drafts(folder, always_named=self.tracks_use or not self.writable)
        self._counts = 0

    def current(self) -> Space:
        """Return the space for the next operation: one with books, once anybody keeps them. Cost: one stat."""
        return self._with_books() if self._ledger.is_kept() else self

    def create(self, nbytes: int, *, key: bytes, path: str, flags: int) -> Draft:  # noqa: ARG002 - for the books
        """Return a draft of the object of *nbytes* at *path*; `discard` it in any case.

        Raises:
            StoreFull: it does not fit, also after eviction.
        """
        return self._drafts.create(path, reserved_nbytes=0, flags=flags)

    def publish(self, draft: Draft, path: str, key: bytes) -> None:
        """The draft is the object at *path*; what was there before is gone."""
        if _is_hashed_path(path):
            with self._ledger.locked():
                self._publish(draft, path, key)
        else:
            self._drafts.publish(draft, path)
        self._changed()

    def discard(self, draft: Draft) -> None:
        """The draft is closed. Unless it is published it is gone and its room is free."""
        discard(draft)

    def remove(self, path: str) -> bool:
        """No object is at *path*; the result says whether there was one."""
        if _is_hashed_path(path):
            with self._ledger.locked():
                found = self._remove(path)
        else:
            found = unlink_file(path)
        if found:
            self._changed()
        return found

    def set_aside(self, path: str) -> bool:
        """What was at *path* is in quarantine, as long as it is among the newest there."""
        with self._ledger.locked():
            found = self._set_aside(path)
        if found:
            self._changed()
        return found

    def free(self, nbytes: int) -> int:
        """Remove old objects until *nbytes* are free; return what was freed. For a full device."""
        with self._ledger.locked() as account:
            freed = self._evictor.free(nbytes)
            if freed < nbytes:
                self._evictor.look_around()
                freed += self._evictor.free(nbytes - freed)
            account.add(-freed)
        return freed

    def reclaim(self, foreign_age_s: float) -> None:
        """The temporary files of dead writers are gone."""
        for name in list(orphans(self._folder.tmp, foreign_age_s)):
            try:
                self._discard_orphan(name)
            except OSError as error:
                _log.warning("file.reclaim_failed name=%s error=%s", name, error)
        self._changed()

    def enforce(self) -> None:
        """The folder takes no more than the capacity, as far as its files can be removed."""

    def _with_books(self) -> CountedSpace:
        return CountedSpace(
            self._folder,
            quarantine_count=self._quarantine_count,
            evictor=self._evictor,
            capacity_nbytes=None,
            eviction_ratio=1.0,
        )

    def _changed(self) -> None:
        """What this instance has just changed without books is in those that somebody may have begun to keep."""
        counts = self._counts
        if not self._ledger.is_kept():
            return
        with self._ledger.locked() as account:
            if self._counts == counts:  # else another thread has begun a count since
                self._counts += 1
                account.count(self._evictor.look_around)

    def _publish(self, draft: Draft, path: str, key: bytes) -> None:
        if _is_hashed_path(path):
            companion = self._drafts.new_name(0)
            try:
                Path(companion).write_bytes(key)
                replace(companion, path + COMPANION_SUFFIX)
            finally:
                unlink_file(companion)
        self._drafts.publish(draft, path)

    def _discard_orphan(self, name: str) -> None:
        unlink_file(self._folder.tmp + name)

    def _remove(self, path: str) -> bool:
        found = unlink_file(path)
        if _is_hashed_path(path):
            unlink_file(path + COMPANION_SUFFIX)
        return found

    def _set_aside(self, path: str) -> bool:
        if Path(path).is_dir():
            remove_any(path)
            return True
        name = path.rpartition("/")[2]
        try:
            replace(path, f"{self._folder.quarantine}{time.time_ns():019d}.{name}")
        except FileNotFoundError:
            return False
        if is_hashed(name):
            unlink_file(path + COMPANION_SUFFIX)
        kept = sorted(entry.path for entry in scan(self._folder.quarantine))
        for oldest in kept[: max(0, len(kept) - self._quarantine_count)]:
            remove_any(oldest)
        return True


class CountedSpace(Space):
    """The folder of a store whose books are kept, because somebody who has it open has a capacity.

    Args:
        capacity_nbytes: this instance's limit on what all the folder's files take together;
            None = none of its own, it only keeps the books right for the others.
    """

    tracks_use = True

    def __init__(
        self,
        folder: Folder,
        *,
        quarantine_count: int,
        evictor: Evictor,
        capacity_nbytes: int | None,
        eviction_ratio: float,
    ) -> None:
        super().__init__(folder, quarantine_count=quarantine_count, evictor=evictor)
        self.capacity_nbytes = capacity_nbytes
        self._eviction_ratio = eviction_ratio

    def current(self) -> Space:
        return self

    def create(self, nbytes: int, *, key: bytes, path: str, flags: int) -> Draft:
        needed = charge_of(nbytes) + (charge_of(len(key)) if _is_hashed_path(path) else 0)
        with self._books() as account:
            if not self._make_room(account, needed):
                reason = (
                    f"{needed} bytes needed, {account.used_nbytes} of {self.capacity_nbytes} in use "
                    "and nothing more that can be evicted"
                )
                raise StoreFull(reason, backend=BACKEND, op="write", key=key.decode())
            account.add(needed)
            try:
                return self._drafts.create(path, reserved_nbytes=needed, flags=flags)
            except BaseException:
                account.add(-needed)
                raise

    def publish(self, draft: Draft, path: str, key: bytes) -> None:
        with self._books() as account:
            before = _footprint(path)
            try:
                self._publish(draft, path, key)
            except BaseException:
                account.add(_footprint(path) - before)
                raise
            account.add(-before)  # what was reserved for the draft is now what the object takes
            draft.reserved_nbytes = 0

    def discard(self, draft: Draft) -> None:
        discard(draft)
        if draft.reserved_nbytes:
            with self._books() as account:
                account.add(-draft.reserved_nbytes)
                draft.reserved_nbytes = 0

    def remove(self, path: str) -> bool:
        with self._measured(path):
            return self._remove(path)

    def set_aside(self, path: str) -> bool:
        with self._measured(path) as account:
            before = self._quarantined_nbytes()
            try:
                return self._set_aside(path)
            finally:
                account.add(self._quarantined_nbytes() - before)

    def enforce(self) -> None:
        with self._books() as account:
            if not self._make_room(account, 0):
                _log.warning("file.over_capacity used=%d capacity=%s", account.used_nbytes, self.capacity_nbytes)

    def _make_room(self, account: Account, needed: int) -> bool:
        capacity = self.capacity_nbytes
        if capacity is None or account.used_nbytes + needed <= capacity:
            return True
        if needed > capacity:
            return False
        lowered = int(capacity * self._eviction_ratio) - needed
        goal = lowered if lowered >= 0 else capacity - needed
        account.add(-self._evictor.free(account.used_nbytes - goal))
        if account.used_nbytes + needed > capacity:
            account.count(self._evictor.look_around)
            account.add(-self._evictor.free(account.used_nbytes - goal))
        return account.used_nbytes + needed <= capacity

    def _changed(self) -> None:
        """The books have followed the change."""

    def _discard_orphan(self, name: str) -> None:
        temp = Temp.parse(name)
        with self._books() as account:
            if unlink_file(self._folder.tmp + name):
                account.add(-temp.nbytes if temp else 0)

    @contextmanager
    def _books(self) -> Iterator[Account]:
        with self._ledger.locked() as account:
            if not account.kept:  # somebody removed the file, or was killed while counting
                account.count(self._evictor.look_around)
            yield account

    @contextmanager
    def _measured(self, path: str) -> Iterator[Account]:
        """The books follow what the block does to the files of *path*, also if it fails."""
        with self._books() as account:
            before = _footprint(path)
            try:
                yield account
            finally:
                account.add(_footprint(path) - before)

    def _quarantined_nbytes(self) -> int:
        return sum(charge_at(entry.path) for entry in scan(self._folder.quarantine))


class LookedAtSpace(Space):
    """The folder of a store that is only looked at: other instances need not know, and there is nothing to count."""

    writable = False

    def current(self) -> Space:
        return self


def open_space(folder: Folder, options: FileOptions, *, alone: bool) -> Space:
    """Return the folder's space for one more instance; books are kept while anybody has a capacity.

    Args:
        alone: nobody else has the folder open: the books are made anew, or dropped.
    """
    evictor = Evictor(folder, keep_prefixes=options.keep_prefixes)
    with Ledger(folder.ledger).locked() as account:
        if options.capacity_nbytes is not None and (alone or not account.kept):
            account.count(evictor.look_around)
        elif alone:
            account.abandon()
        kept = account.kept
    if not kept:
        return Space(folder, quarantine_count=options.quarantine_count, evictor=evictor)
    return CountedSpace(
        folder,
        quarantine_count=options.quarantine_count,
        evictor=evictor,
        capacity_nbytes=options.capacity_nbytes,
        eviction_ratio=options.eviction_ratio,
    )


def look_into(folder: Folder) -> Space:
    """Return the folder's space for an instance that only looks: it opens and changes nothing."""
    return LookedAtSpace(folder, quarantine_count=0, evictor=Evictor(folder, keep_prefixes=()))


def _is_hashed_path(path: str) -> bool:
    return path[path.rfind("/") + 1] == "="


def _footprint(path: str) -> int:
    return charge_at(path) + (charge_at(path + COMPANION_SUFFIX) if _is_hashed_path(path) else 0)
