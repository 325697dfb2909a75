"""The file backend: one object, one file, moved with preadv and pwritev."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from hicache_storage.backends.file import io
from hicache_storage.backends.file.direct import DirectIO, probe
from hicache_storage.backends.file.errors import BACKEND, NO_ROOM, UNREADABLE, store_error
from hicache_storage.backends.file.folder import Folder, Membership, make_durably, sync_folder
from hicache_storage.backends.file.listing import objects_in
from hicache_storage.backends.file.names import object_path
from hicache_storage.backends.file.options import FileOptions
from hicache_storage.backends.file.recency import UseTimes
from hicache_storage.backends.file.space import Space, look_into, open_space
from hicache_storage.backends.io_threads import IOThreads
from hicache_storage.errors import (
    ConfigError,
    CorruptObject,
    RangeError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Unsupported,
)
from hicache_storage.store import ObjectStore, check_key
from hicache_storage.types import (
    ALREADY_THERE,
    HIT,
    MISS,
    STORED,
    Capabilities,
    ObjectInfo,
    ObjectWrite,
    Outcome,
    RangeRead,
    ReadableBuffer,
    WritableBuffer,
    WriteResult,
    failed,
)

_OPEN_TO_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Does not wait for anybody if something strange, such as a pipe, lies in an object's place."""

_TYPE_BITS = 0o170000
"""The part of a file's mode that says what it is."""

_RESCUE_FACTOR = 4
"""How many times the size of an object that found the device full is freed before the one retry."""

_MAX_SUSPECTS = 4096


class FileStore(ObjectStore):
    """Objects as files below ``options.path``.

    Any number of instances, threads, processes and forked children may use one folder at once.
    Without a capacity no operation but `list_keys` and `quarantine` reads a directory, and no books
    are kept. With one, it holds for the folder as a whole (`space`), and a file's modification time
    is when the object was last used (`recency`): a later use always has a later time, along the keys of one
    `touch_many` too, and eviction goes by that order exactly.

    A killed process damages nothing at any setting. What a power failure takes depends on ``fsync``:
    with ``none`` objects of the last seconds may be gone or cut short, which a reader notices by their
    size; with ``data`` an object that is there is whole; with ``full`` one whose write returned is there.

    Raises:
        ConfigError: the path cannot be a store's folder, or its filesystem lacks what an option needs.
        StoreUnavailable: something else is in the folder's place, or nothing and ``create`` is off.
        AccessDenied: ``create`` is off and the folder cannot be read.
    """

    name = BACKEND
    options_type: ClassVar[type] = FileOptions
    capabilities = Capabilities()

    def __init__(self, options: FileOptions) -> None:
        self._folder = Folder.prepare(options.path) if options.create else Folder.look(options.path)
        self._objects = self._folder.objects
        self._fsync = options.fsync
        # Whether O_DIRECT works is found out by writing, so who only looks does without it.
        direct = options.direct and options.create
        self._direct_flag = os.O_DIRECT if direct else 0
        self._flags_to_read = _OPEN_TO_LOOK | self._direct_flag
        self._threads = IOThreads(options.io_threads, BACKEND)
        self._uses = UseTimes()
        self._suspects: set[str] = set()
        self._closed = False
        self._read_range = io.read_range
        self._write_all = io.write_all
        try:
            if direct:
                probe(self._folder)
                direct_io = DirectIO()
                self._read_range = direct_io.read_range
                self._write_all = direct_io.write_all
            self._membership = Membership(self._folder) if options.create else None
            self._space = self._enter(options, self._membership)
        except OSError as error:
            reason = f"file option path = {self._folder.root!r}: {error}; expected a folder to read and write files in"
            raise ConfigError(reason) from error

    def _enter(self, options: FileOptions, membership: Membership | None) -> Space:
        if membership is None:
            return look_into(self._folder)
        try:
            space = open_space(self._folder, options, alone=membership.alone)
            space.reclaim(options.orphan_age_s)
            space.enforce()
            membership.settle()
        except BaseException:
            membership.close()
            raise
        return space

    # -- reading -----------------------------------------------------------------------------

    def read_into(
        self,
        key: str,
        offset: int,
        targets: Sequence[WritableBuffer],
        *,
        object_nbytes: int | None = None,
    ) -> bool:
        outcomes = [MISS]
        self._space = self._space.current()
        self._read_block([RangeRead(key, offset, targets, object_nbytes)], outcomes, range(1))
        if outcomes[0].error is not None:
            raise outcomes[0].error
        return outcomes[0] is HIT

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        outcomes = [MISS] * len(reads)
        self._space = self._space.current()
        self._threads.run(partial(self._read_block, reads, outcomes), _blocks(len(reads), self._threads.count))
        return outcomes

    def _read_block(self, reads: Sequence[RangeRead], outcomes: list[Outcome], block: range) -> None:
        """Set the outcomes of the reads in *block*; reads of one key that follow each other share a descriptor."""
        key, opened = None, MISS
        fd = -1
        try:
            for index in block:
                read = reads[index]
                if read.key != key:
                    key = read.key
                    fd = self._leave(fd)
                    fd, opened = self._open_to_read(key)
                outcomes[index] = self._read_outcome(fd, read) if fd >= 0 else opened
        finally:
            self._leave(fd)

    def _open_to_read(self, key: str) -> tuple[int, Outcome]:
        """Return a descriptor of the object, or -1 and why there is none."""
        try:
            return os.open(self._path_of(key, "read"), self._flags_to_read), HIT
        except FileNotFoundError:
            return -1, MISS
        except (OSError, StoreError) as error:
            return -1, failed(self._read_error(error, key))

    def _read_outcome(self, fd: int, read: RangeRead) -> Outcome:
        try:
            self._read_open(fd, read)
        except (OSError, StoreError) as error:
            return failed(self._read_error(error, read.key))
        return HIT

    def _leave(self, fd: int) -> int:
        """Close *fd*, if it is one, after the object counts as used."""
        if fd >= 0:
            try:
                if self._space.tracks_use:
                    self._uses.mark(fd)
            finally:
                os.close(fd)
        return -1

    def _read_open(self, fd: int, read: RangeRead) -> None:
        offset, targets, object_nbytes = read.offset, read.targets, read.object_nbytes
        nbytes = io.total_nbytes(targets)
        to_file_end = nbytes > 0 and object_nbytes == offset + nbytes
        if not to_file_end and (nbytes == 0 or offset < 0 or object_nbytes is not None):
            self._check_size(fd, read, nbytes)
        got = self._read_range(fd, offset, targets, nbytes, to_file_end, read.on_filled)
        if got != nbytes:
            self._check_size(fd, read, nbytes)
            reason = f"{got} of {nbytes} bytes read, while the object's size changed"
            raise CorruptObject(reason, backend=BACKEND, op="read", key=read.key)

    def _check_size(self, fd: int, read: RangeRead, nbytes: int) -> None:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptObject("it is no regular file", backend=BACKEND, op="read", key=read.key)
        size_nbytes = status.st_size
        if read.object_nbytes is not None and size_nbytes != read.object_nbytes:
            reason = f"the object has {size_nbytes} bytes instead of {read.object_nbytes}"
            raise CorruptObject(reason, backend=BACKEND, op="read", key=read.key)
        if read.offset < 0 or read.offset + nbytes > size_nbytes:
            reason = f"bytes [{read.offset}, {read.offset + nbytes}) of an object of {size_nbytes} bytes"
            raise RangeError(reason, backend=BACKEND, op="read", key=read.key)

    def _read_error(self, error: OSError | StoreError, key: str) -> StoreError:
        if isinstance(error, StoreError):
            return error
        if error.errno == errno.EINVAL and os.path.isdir(error.filename or ""):  # noqa: PTH112 - may be bytes or ""
            error = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), error.filename)
        if error.errno in UNREADABLE and len(self._suspects) < _MAX_SUSPECTS:
            self._suspects.add(key)
        meaning = store_error(error, op="read", key=key)
        meaning.__cause__ = error
        return meaning

    # -- writing -----------------------------------------------------------------------------

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        return self._write(ObjectWrite(key, parts))

    def _write(self, write: ObjectWrite) -> WriteResult:
        key = write.key
        path = self._path_to_change(key, "write")
        nbytes = io.total_nbytes(write.payload) + (0 if write.tail is None else write.tail.nbytes)
        if self._is_there(key, path, nbytes):
            return WriteResult.ALREADY_THERE
        try:
            try:
                self._write_new(write, path, nbytes)
            except OSError as error:
                if error.errno not in NO_ROOM or not self._space.free(_RESCUE_FACTOR * max(1, nbytes)):
                    raise
                self._write_new(write, path, nbytes)
        except OSError as error:
            raise store_error(error, op="write", key=key) from error
        self._suspects.discard(key)
        return WriteResult.STORED

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        outcomes = [MISS] * len(writes)

        def write_one(index: int) -> None:
            try:
                result = self._write(writes[index])
                outcomes[index] = STORED if result is WriteResult.STORED else ALREADY_THERE
            except StoreError as error:
                outcomes[index] = failed(error)

        self._threads.run(write_one, range(len(writes)))
        if self._space.capacity_nbytes is not None:
            # Several large writes at once may have held all the room; one after the other they fit.
            for index, outcome in enumerate(outcomes):
                if isinstance(outcome.error, StoreFull):
                    write_one(index)
        return outcomes

    def _is_there(self, key: str, path: str, nbytes: int) -> bool:
        """Return whether a readable object of *nbytes* is at *path*; it counts as used now."""
        if not os.access(path, os.F_OK) or key in self._suspects:
            return False
        try:
            fd = os.open(path, _OPEN_TO_LOOK)
        except OSError:
            return False  # unreadable: replaced
        try:
            status = os.fstat(fd)
            there = stat.S_ISREG(status.st_mode) and status.st_size == nbytes
            if there and self._space.tracks_use:
                self._uses.mark(fd)
        finally:
            os.close(fd)
        return there

    def _write_new(self, write: ObjectWrite, path: str, nbytes: int) -> None:
        encoded = write.key.encode()
        leaf = path.rpartition("/")[0]
        if self._fsync == "full":
            make_durably(Path(leaf))
        space = self._space  # the one that makes a draft has to see it to its end
        draft = space.create(nbytes, key=encoded, path=path, flags=self._direct_flag)
        try:
            self._write_all(draft.fd, write)
            if self._fsync == "data":
                os.fdatasync(draft.fd)
            elif self._fsync == "full":
                os.fsync(draft.fd)
            if space.tracks_use:
                self._uses.mark(draft.fd)
            space.publish(draft, path, encoded)
        finally:
            space.discard(draft)
        if self._fsync == "full":
            sync_folder(leaf)

    # -- the rest ------------------------------------------------------------------------------

    def stat(self, key: str) -> ObjectInfo | None:
        path = self._path_of(key, "stat")
        try:
            status = os.stat(path)  # noqa: PTH116 - hot path, a Path costs as much as the call
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_error(error, op="stat", key=key) from error
        return ObjectInfo(key, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        path_of, look = self._path_of, os.stat
        for key in keys:
            try:
                # S_ISREG, spelled out: a lookup asks for thousands of keys before it reads one.
                regular = look(path_of(key, "exists")).st_mode & _TYPE_BITS == stat.S_IFREG
                outcomes.append(HIT if regular else MISS)
            except FileNotFoundError:
                outcomes.append(MISS)
            except StoreError as error:
                outcomes.append(failed(error))
            except OSError as error:
                outcomes.append(failed(store_error(error, op="exists", key=key)))
        return outcomes

    def touch_many(self, keys: Sequence[str]) -> list[Outcome]:
        outcomes = self.exists_many(keys)
        self._space = self._space.current()
        if self._space.tracks_use:
            there = (key for key, outcome in zip(keys, outcomes, strict=True) if outcome is HIT)
            self._uses.mark_in_order([self._objects + object_path(key) for key in there])
        return outcomes

    def delete(self, key: str) -> bool:
        path = self._path_to_change(key, "delete")
        try:
            return self._space.remove(path)
        except OSError as error:
            raise store_error(error, op="delete", key=key) from error

    def quarantine(self, key: str) -> bool:
        path = self._path_to_change(key, "quarantine")
        try:
            return self._space.set_aside(path)
        except OSError as error:
            raise store_error(error, op="quarantine", key=key) from error

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._check_open("list")
        return objects_in(self._folder, prefix)

    def close(self) -> None:
        self._closed = True
        self._threads.close()
        if self._membership is not None:
            self._membership.close()

    def _path_to_change(self, key: str, op: str) -> str:
        """Return where the object lies; whoever changes something there does it in the current space."""
        path = self._path_of(key, op)
        space = self._space = self._space.current()
        if not space.writable:
            reason = f"the store at {self._folder.root!r} was opened only to look at it (create = False)"
            raise Unsupported(reason, backend=BACKEND, op=op, key=key)
        return path

    def _path_of(self, key: str, op: str) -> str:
        try:
            if key and not self._closed:
                return self._objects + object_path(key)
        except UnicodeEncodeError:
            pass  # check_key says so in the words of all backends
        self._check_open(op, key)
        check_key(key, self.capabilities, backend=BACKEND, op=op)
        return self._objects + object_path(key)

    def _check_open(self, op: str, key: str = "") -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", backend=BACKEND, op=op, key=key)


def _blocks(count: int, threads: int) -> list[range]:
    """Cut *count* requests into blocks: several for each thread, so that a slow one delays no other.

    Blocks are even, which keeps the two requests of an object that is read in two parts together.
    """
    step = max(2, min(8, count // (4 * threads) & ~1))
    return [range(start, min(start + step, count)) for start in range(0, count, step)]
