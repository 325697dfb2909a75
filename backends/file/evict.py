"""Which objects go first, and how they go: least recently used first, one scan for many evictions.

An object's modification time is when it was last used, where the store tracks use, else when it was written.
A scan keeps the `SNAPSHOT_COUNT` oldest files. Later evictions take from that list; a file whose time has
changed since was used since and is passed over, and whatever is not on the list is younger than all that is on
it. So the order is exact, at one scan per turnover of the list.

Objects whose keys begin with one of the kept prefixes are counted and never evicted: they are few and small,
and what they say of the others is needed for as long as one of those is there.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hicache_storage.backends.file.folder import Folder, remove_any, unlink_file
from hicache_storage.backends.file.ledger import charge_of
from hicache_storage.backends.file.names import COMPANION_SUFFIX, is_hashed
from hicache_storage.backends.file.temps import Temp
from hicache_storage.backends.file.walk import key_of, leaves, scan
from hicache_storage.telemetry import RareWarnings

_log = logging.getLogger(__name__)

SNAPSHOT_COUNT = 65_536
"""About 20 MB of memory at most, whatever the store's size."""


class Candidate(NamedTuple):
    """A file that may go; the smallest goes first."""

    is_object: bool  # quarantined files are of no use to anybody, so they go before any object
    used_ns: int
    path: str


class Evictor:
    """Frees room in one folder. Its caller holds the ledger's lock around every call.

    Args:
        keep_prefixes: what the keys of objects begin with that stay.
    """

    def __init__(self, folder: Folder, *, keep_prefixes: Sequence[str]) -> None:
        self._folder = folder
        self._kept = tuple(prefix.encode() for prefix in keep_prefixes)
        self._oldest: list[Candidate] = []
        self._charged_nbytes = 0
        self._warnings = RareWarnings(_log)

    def look_around(self) -> int:
        """Return what all files of the folder are charged, exactly; `free` has candidates again.

        Cost: one scan of the whole folder.
        """
        self._charged_nbytes = 0
        self._oldest = heapq.nsmallest(SNAPSHOT_COUNT, self._census())
        self._oldest.reverse()
        return self._charged_nbytes

    def free(self, nbytes: int) -> int:
        """Remove the oldest candidates until *nbytes* are free or none is left; return what was freed.

        A file that cannot be removed is passed over.
        """
        freed = 0
        while freed < nbytes and self._oldest:
            candidate = self._oldest.pop()
            try:
                freed += _remove_unless_used(candidate)
            except OSError as error:
                self._warnings.warn("evict", "file.evict_failed path=%s error=%s", candidate.path, error)
        return freed

    def _census(self) -> Iterator[Candidate]:
        """Yield every file that may go, and add up the charges of all, also of those that may not."""
        for entry in scan(self._folder.tmp):
            temp = Temp.parse(entry.name)
            with suppress(FileNotFoundError):
                self._charged_nbytes += temp.nbytes if temp else _charge_of_entry(entry)
        for entry in scan(self._folder.quarantine):
            with suppress(FileNotFoundError):
                self._charged_nbytes += _charge_of_entry(entry)
                yield Candidate(is_object=False, used_ns=entry.stat(follow_symlinks=False).st_mtime_ns, path=entry.path)
        for leaf in leaves(self._folder):
            yield from self._census_of_leaf(leaf)

    def _census_of_leaf(self, leaf: str) -> Iterator[Candidate]:
        entries = {entry.name: entry for entry in scan(leaf) if not entry.is_dir(follow_symlinks=False)}
        for name, entry in entries.items():
            with suppress(FileNotFoundError):
                if is_hashed(name) and name.endswith(COMPANION_SUFFIX):
                    self._count_companion(entry, has_object=name.removesuffix(COMPANION_SUFFIX) in entries)
                    continue
                status = entry.stat(follow_symlinks=False)
                self._charged_nbytes += charge_of(status.st_size)
                if not self._is_kept(entry):
                    yield Candidate(is_object=True, used_ns=status.st_mtime_ns, path=entry.path)

    def _is_kept(self, entry: os.DirEntry[str]) -> bool:
        try:
            return key_of(entry).startswith(self._kept)
        except FileNotFoundError:
            return False  # nobody can know its key

    def _count_companion(self, entry: os.DirEntry[str], *, has_object: bool) -> None:
        if has_object:
            self._charged_nbytes += _charge_of_entry(entry)
        else:
            remove_any(entry.path)  # its writer was killed before it published the object


def _remove_unless_used(candidate: Candidate) -> int:
    """Return what the candidate's removal freed; 0 if it was used since the scan, or is gone."""
    try:
        status = os.lstat(candidate.path)
    except FileNotFoundError:
        return 0
    if status.st_mtime_ns != candidate.used_ns:
        return 0
    if not unlink_file(candidate.path):
        return 0
    freed = charge_of(status.st_size)
    name = candidate.path.rpartition("/")[2]
    if candidate.is_object and is_hashed(name):
        companion = Path(candidate.path + COMPANION_SUFFIX)
        with suppress(FileNotFoundError):
            freed += charge_of(companion.lstat().st_size)
            companion.unlink()
    return freed


def _charge_of_entry(entry: os.DirEntry[str]) -> int:
    return charge_of(entry.stat(follow_symlinks=False).st_size)
