"""How an object comes into the bucket: once, whole, and not over an equal one."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Sequence

from hicache_storage.backends.io_threads import IOThreads
from hicache_storage.backends.s3.bucket import Bucket, Call
from hicache_storage.backends.s3.multipart import put_in_parts
from hicache_storage.backends.s3.options import S3Options
from hicache_storage.errors import AccessDenied, StoreUnavailable, Unsupported
from hicache_storage.types import ReadableBuffer, WriteResult, nbytes_of

_log = logging.getLogger(__name__)

_JOINED_NBYTES = 64 << 10

_SERVERS_THAT_QUEUE = ("SeaweedFS",)
"""Servers that have the condition, but whose writers of one key wait for each other in steps of a second."""


class Writer:
    """Writes objects to one bucket. Thread-safe.

    A new object takes one request where the server has conditional writes: a PUT that is refused if
    something is there. Otherwise, and for objects in parts, a look comes first. Two writers that look at
    the same time both write, which does no harm: objects are named for their content.
    """

    def __init__(self, bucket: Bucket, workers: IOThreads, options: S3Options) -> None:
        self._bucket = bucket
        self._workers = workers
        self._threshold_nbytes = options.multipart_threshold_nbytes
        self._part_nbytes = options.part_nbytes
        self._conditional = {"always": True, "never": False, "auto": None}[options.conditional_put]
        self._asking = threading.Lock()

    def write(self, call: Call, name: str, parts: Iterable[ReadableBuffer]) -> WriteResult:
        """Store the concatenation of *parts*, unless an object of the same size is there."""
        body = body_of(parts)
        nbytes = sum(map(len, body))
        in_parts = nbytes > self._threshold_nbytes
        if not in_parts and self._has_conditions(call):
            answer = self._bucket.put(call, name, body, only_if_new=True)
            if answer.status == 200:
                return WriteResult.STORED
        head = self._bucket.head(call, name)
        if head is not None and head.nbytes == nbytes:
            return WriteResult.ALREADY_THERE
        if in_parts:
            put_in_parts(self._bucket, self._workers, call, name, body, self._part_nbytes)
        else:
            self._bucket.put(call, name, body, only_if_new=False)
        return WriteResult.STORED

    def _has_conditions(self, call: Call) -> bool:
        if self._conditional is None:
            with self._asking:
                if self._conditional is None:
                    self._conditional = self._ask_for_conditions(call)
        return self._conditional

    def _ask_for_conditions(self, call: Call) -> bool:
        """Return whether the server refuses to write over an object when asked to.

        A server that does not know the condition ignores it, so only trying tells. The object's name
        is no key's, and nobody else's.
        """
        name = f"!probe-{uuid.uuid4().hex}"
        try:
            server = self._bucket.put(call, name, [], only_if_new=False).headers.get("server", "")
        except StoreUnavailable:
            self._remove_probe(call, name)  # It may be there: the answer alone can have been lost.
            raise
        except Unsupported:
            return False
        try:
            if server.startswith(_SERVERS_THAT_QUEUE):
                return False
            return self._bucket.put(call, name, [], only_if_new=True).status != 200
        except Unsupported:
            return False
        finally:
            self._remove_probe(call, name)

    def _remove_probe(self, call: Call, name: str) -> None:
        """The probe is gone, unless this account may write and not delete: then it stays, once for each store opened."""
        try:
            self._bucket.delete(call, name)
        except AccessDenied as error:
            _log.warning("s3.probe_left_behind name=%s%s reason=%s", self._bucket.prefix, name, error)


def body_of(parts: Iterable[ReadableBuffer]) -> list[memoryview]:
    """Return *parts* as flat views to be sent one after the other; runs of small ones are copied together."""
    body: list[memoryview] = []
    small: list[ReadableBuffer] = []
    small_nbytes = 0
    for part in parts:
        nbytes = nbytes_of(part)
        if nbytes == 0:
            continue
        if small_nbytes + nbytes <= _JOINED_NBYTES:
            small.append(part)
            small_nbytes += nbytes
            continue
        body += _joined(small)
        small, small_nbytes = ([part], nbytes) if nbytes <= _JOINED_NBYTES else ([], 0)
        if nbytes > _JOINED_NBYTES:
            body.append(memoryview(part).cast("B"))
    return body + _joined(small)


def _joined(parts: Sequence[ReadableBuffer]) -> list[memoryview]:
    if len(parts) > 1:
        return [memoryview(b"".join(parts))]
    return [memoryview(part).cast("B") for part in parts]
