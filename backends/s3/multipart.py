"""Large objects, written in parts: nobody sees them before the last request, which publishes the whole.

A killed writer leaves parts that cost room until a lifecycle rule of the bucket
(AbortIncompleteMultipartUpload) removes them; a failed one removes them itself.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from html import unescape
from threading import Thread
from urllib.parse import quote
from xml.sax.saxutils import escape

from hicache_storage.backends.io_threads import IOThreads
from hicache_storage.backends.s3.bucket import Bucket, Call
from hicache_storage.backends.s3.errors import BACKEND, refusal, store_errors
from hicache_storage.errors import StoreError

_log = logging.getLogger(__name__)

_MAX_PARTS = 10_000
_ABORT_WITHIN_S = 1.0
_LATE_ABORT_WITHIN_S = 10.0
_UPLOAD_ID = re.compile(rb"<UploadId>\s*([^<]+?)\s*</UploadId>")


def put_in_parts(
    bucket: Bucket, workers: IOThreads, call: Call, name: str, body: Sequence[memoryview], part_nbytes: int
) -> None:
    """Store an object, replacing one that is there. *call*'s deadline holds for all of its parts together."""
    target = bucket.target(name)
    headers = dict(bucket.creation_headers)
    if bucket.sends_checksums:
        headers["x-amz-checksum-algorithm"] = "CRC32"
    answer = bucket.ask(call, "POST", f"{target}?uploads=", headers=headers)
    match = _UPLOAD_ID.search(answer.body)
    if match is None:
        raise StoreError("the server began an upload without an id", backend=BACKEND, op=call.op, key=call.key)
    upload = f"uploadId={quote(unescape(match[1].decode()), safe='-_.~')}"
    try:
        parts = _send_parts(bucket, workers, call, f"{target}?", upload, cut(body, part_nbytes))
        _complete(bucket, call, f"{target}?{upload}", parts)
    except BaseException:
        _abort(bucket, call, f"{target}?{upload}")
        raise


def cut(body: Sequence[memoryview], part_nbytes: int) -> list[list[memoryview]]:
    """Return the parts of *body*, each as views of *part_nbytes* together; larger where S3's number of parts demands it."""
    nbytes = sum(map(len, body))
    part_nbytes = max(part_nbytes, -(-nbytes // _MAX_PARTS))
    parts: list[list[memoryview]] = []
    room = 0
    for view in body:
        start = 0
        while start < len(view):
            if room == 0:
                parts.append([])
                room = part_nbytes
            piece = view[start : start + room]
            parts[-1].append(piece)
            start += len(piece)
            room -= len(piece)
    return parts


def _send_parts(
    bucket: Bucket, workers: IOThreads, call: Call, base: str, upload: str, parts: Sequence[Sequence[memoryview]]
) -> list[str]:
    """Send every part, several at once; return what the last request says of each."""
    said = [""] * len(parts)

    def send(index: int) -> None:
        checksum = bucket.checksum(parts[index])
        target = f"{base}partNumber={index + 1}&{upload}"
        answer = bucket.ask(call, "PUT", target, headers={**bucket.customer_key_headers, **checksum}, body=parts[index])
        fields = [f"<PartNumber>{index + 1}</PartNumber>", f"<ETag>{escape(answer.headers.get('etag', ''))}</ETag>"]
        fields += [f"<ChecksumCRC32>{crc}</ChecksumCRC32>" for crc in checksum.values()]
        said[index] = f"<Part>{''.join(fields)}</Part>"

    workers.run(send, range(len(parts)))
    return said


def _complete(bucket: Bucket, call: Call, target: str, parts: Sequence[str]) -> None:
    document = f"<CompleteMultipartUpload>{''.join(parts)}</CompleteMultipartUpload>"
    answer = bucket.ask(call, "POST", target, body=[memoryview(document.encode())])
    if b"<Error>" in answer.body:
        # S3 answers 200 before it knows, so as to keep the connection alive.
        raise refusal(500, answer.body, op=call.op, key=call.key)


def _abort(bucket: Bucket, call: Call, target: str) -> None:
    """The parts are removed if the server can do that; behind the caller's back if the deadline leaves no time for it."""
    now = time.monotonic()
    if call.ends_at - now >= _ABORT_WITHIN_S:
        _remove_parts(bucket, replace(call, ends_at=now + _ABORT_WITHIN_S), target)
        return
    late = replace(call, ends_at=now + _LATE_ABORT_WITHIN_S)
    # Where no thread can be started any more, the process ends, as a killed writer does.
    with suppress(RuntimeError):
        Thread(target=_remove_parts, args=(bucket, late, target), name="hicache-s3-abort", daemon=True).start()


def _remove_parts(bucket: Bucket, call: Call, target: str) -> None:
    try:
        with store_errors(call.op, call.key):
            bucket.ask(call, "DELETE", target, expected=(200, 204, 404))
    except StoreError as error:
        _log.warning("s3.upload_left_behind key=%s reason=%s", call.key, error)
