"""The s3 backend: one object, one object of a bucket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hicache_storage.backends.io_threads import IOThreads
from hicache_storage.backends.s3.bucket import Bucket, Call
from hicache_storage.backends.s3.errors import BACKEND, store_errors
from hicache_storage.backends.s3.listing import DELETED_AT_ONCE, create_bucket, delete_page, list_page
from hicache_storage.backends.s3.names import key_of_name, max_key_nbytes, object_name
from hicache_storage.backends.s3.options import S3Options
from hicache_storage.backends.s3.patience import Patience
from hicache_storage.backends.s3.ranges import RunQueue, Want
from hicache_storage.backends.s3.reading import Reader
from hicache_storage.backends.s3.session import find_endpoint
from hicache_storage.backends.s3.writing import Writer
from hicache_storage.errors import StoreError, StoreUnavailable
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


@dataclass(frozen=True, slots=True)
class _Remote:
    """What talks to the server. A forked child gets one of its own."""

    pid: int
    bucket: Bucket
    reader: Reader
    writer: Writer


class S3Store(ObjectStore):
    """Objects in one bucket, below one prefix, of any S3-compatible service.

    The SDK finds credentials, address and authorities; requests go over the store's own connections, straight
    from and into the caller's memory. Constructing sends nothing to the service, unless
    ``create_bucket`` is set. Any number of instances, threads, processes and forked children may use one bucket.

    Raises:
        ConfigError: no credentials, or options that the SDK cannot work with.
        StoreError: ``create_bucket`` is set and the bucket cannot be created.
    """

    name = BACKEND
    options_type: ClassVar[type] = S3Options

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._workers = IOThreads(options.io_threads, BACKEND)
        self._closed = False
        self._remote = self._connect()
        self.capabilities = Capabilities(keeps_deadline=True, max_key_nbytes=max_key_nbytes(self._remote.bucket.prefix))
        if options.create_bucket:
            try:
                with store_errors("open"):
                    create_bucket(self._remote.bucket, self._call("open", "", self._patience()))
            except BaseException:
                self.close()
                raise

    # -- reading -----------------------------------------------------------------------------

    def read_into(
        self,
        key: str,
        offset: int,
        targets: Sequence[WritableBuffer],
        *,
        object_nbytes: int | None = None,
    ) -> bool:
        outcomes: list[Outcome | None] = [None]
        self._read_run([Want.of(0, RangeRead(key, offset, targets, object_nbytes))], outcomes, self._patience())
        outcome = _decided(outcomes)[0]
        if outcome.error is not None:
            raise outcome.error
        return outcome is HIT

    def read_many(self, reads: Sequence[RangeRead]) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(reads)
        queue = RunQueue(reads, self._options.coalesce_gap_nbytes)
        patience = self._patience()

        def work() -> None:
            while run := queue.take():
                self._read_run(run, outcomes, patience)

        self._workers.share(work, len(reads))
        return _decided(outcomes)

    def _read_run(self, run: Sequence[Want], outcomes: list[Outcome | None], patience: Patience) -> None:
        key = run[0].read.key

        def read() -> Outcome:
            name = self._name_of(key, "read")
            self._open_remote("read", key).reader.read_run(self._call("read", key, patience), name, run, outcomes)
            return HIT

        outcome = _attempt("read", key, patience, read)
        if outcome.error is not None:
            for want in run:
                if outcomes[want.index] is None:
                    outcomes[want.index] = outcome

    # -- writing -----------------------------------------------------------------------------

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        with store_errors("write", key):
            return self._write(key, parts, self._patience())

    def write_many(self, writes: Sequence[ObjectWrite]) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(writes)
        patience = self._patience()

        def write_one(index: int) -> None:
            write = writes[index]

            def store() -> Outcome:
                stored = self._write(write.key, write.parts, patience) is WriteResult.STORED
                return STORED if stored else ALREADY_THERE

            outcomes[index] = _attempt("write", write.key, patience, store)

        self._workers.run(write_one, range(len(writes)))
        return _decided(outcomes)

    def _write(self, key: str, parts: Sequence[ReadableBuffer], patience: Patience) -> WriteResult:
        name = self._name_of(key, "write")
        return self._open_remote("write", key).writer.write(self._call("write", key, patience), name, parts)

    # -- the rest ------------------------------------------------------------------------------

    def stat(self, key: str) -> ObjectInfo | None:
        with store_errors("stat", key):
            return self._stat("stat", key, self._patience())

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(keys)
        patience = self._patience()

        def look(index: int) -> None:
            key = keys[index]
            outcomes[index] = _attempt(
                "exists", key, patience, lambda: MISS if self._stat("exists", key, patience) is None else HIT
            )

        self._workers.run(look, range(len(keys)))
        return _decided(outcomes)

    def _stat(self, op: str, key: str, patience: Patience) -> ObjectInfo | None:
        name = self._name_of(key, op)
        head = self._open_remote(op, key).bucket.head(self._call(op, key, patience), name)
        return None if head is None else ObjectInfo(key, head.nbytes, head.modified_s)

    def delete(self, key: str) -> bool:
        with store_errors("delete", key):
            name = self._name_of(key, "delete")
            bucket = self._open_remote("delete", key).bucket
            call = self._call("delete", key, self._patience())
            if bucket.head(call, name) is None:
                return False
            bucket.delete(call, name)
            return True

    def delete_many(self, keys: Sequence[str]) -> list[Outcome]:
        # S3 does not say whether what it deleted was there.
        outcomes = self.exists_many(keys)
        patience = self._patience()
        there = {key: object_name(key.encode()) for key, outcome in zip(keys, outcomes, strict=True) if outcome is HIT}
        errors: dict[str, StoreError] = {}
        names = list(there.values())
        for start in range(0, len(names), DELETED_AT_ONCE):
            errors |= self._delete_page(names[start : start + DELETED_AT_ONCE], patience)
        return [
            failed(errors[there[key]]) if outcome is HIT and there[key] in errors else outcome
            for key, outcome in zip(keys, outcomes, strict=True)
        ]

    def _delete_page(self, names: Sequence[str], patience: Patience) -> dict[str, StoreError]:
        try:
            with store_errors("delete"):
                bucket = self._open_remote("delete").bucket
                return delete_page(bucket, self._call("delete", "", patience), names)
        except StoreError as error:
            return dict.fromkeys(names, error)

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._open_remote("list")
        try:
            beginning = object_name(prefix.encode())
        except UnicodeEncodeError:
            return iter(())  # No key begins so.
        return self._listed(beginning)

    def _listed(self, beginning: str) -> Iterator[ObjectInfo]:
        token: str | None = None
        while True:
            with store_errors("list"):
                bucket = self._open_remote("list").bucket
                entries, token = list_page(bucket, self._call("list", "", self._patience()), beginning, token)
            for entry in entries:
                key = key_of_name(entry.name)
                if key is not None:  # Else somebody else's.
                    yield ObjectInfo(key, entry.nbytes, entry.modified_s)
            if token is None:
                return

    def close(self) -> None:
        self._closed = True
        self._workers.close()
        self._remote.bucket.close()

    # -- what every operation begins with --------------------------------------------------------

    def _patience(self) -> Patience:
        return Patience(self._options.deadline_s)

    def _call(self, op: str, key: str, patience: Patience) -> Call:
        return Call(op, key, patience.begin())

    def _name_of(self, key: str, op: str) -> str:
        return object_name(check_key(key, self.capabilities, backend=BACKEND, op=op))

    def _open_remote(self, op: str, key: str = "") -> _Remote:
        if self._closed:
            raise StoreUnavailable("the store is closed", backend=BACKEND, op=op, key=key)
        if self._remote.pid != os.getpid():
            # Forked: the parent goes on using its connections, so here they are only let go.
            self._remote.bucket.close()
            self._remote = self._connect()
        return self._remote

    def _connect(self) -> _Remote:
        bucket = Bucket(find_endpoint(self._options), self._options)
        return _Remote(os.getpid(), bucket, Reader(bucket), Writer(bucket, self._workers, self._options))


def _attempt(op: str, key: str, patience: Patience, work: Callable[[], Outcome]) -> Outcome:
    """Return what *work* returns, or its failure, and note whether the server answered."""
    try:
        with store_errors(op, key):
            outcome = work()
    except StoreError as error:
        outcome = failed(error)
    if not isinstance(outcome.error, StoreUnavailable):
        patience.answered()
    return outcome


def _decided(outcomes: Sequence[Outcome | None]) -> list[Outcome]:
    """Return the outcomes, all of which are set by now."""
    return [outcome for outcome in outcomes if outcome is not None]
