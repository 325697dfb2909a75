"""The requests of S3 about one object. One method, one request, within its deadline.

Source: the Amazon S3 API reference, for these requests, for `listing` and for `multipart`.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage, HTTPResponse
from types import MappingProxyType
from urllib.parse import quote

from hicache_storage.backends.s3.errors import BACKEND, NO_SUCH_BUCKET, code_of, coded_refusal, refusal
from hicache_storage.backends.s3.options import S3Options
from hicache_storage.backends.s3.session import Endpoint
from hicache_storage.backends.s3.signing import EMPTY_PAYLOAD, UNSIGNED_PAYLOAD
from hicache_storage.backends.s3.wire import Wire
from hicache_storage.errors import StoreError

_MAX_ANSWER_NBYTES = 16 << 20
_KEPT_FOR_CALLERS = 32
"""Connections kept for threads that call the store themselves, besides those of its own threads."""

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Call:
    """On whose behalf a request is made, for its errors, and when it must have ended."""

    op: str
    key: str
    ends_at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, read whole."""

    status: int
    headers: HTTPMessage
    body: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of an object without reading it."""

    nbytes: int
    modified_s: float | None


class Bucket:
    """The objects of one bucket below a prefix, by name. Thread-safe.

    Methods raise a `StoreError` for what the server refuses; sockets' and the SDK's own exceptions pass.
    """

    def __init__(self, endpoint: Endpoint, options: S3Options) -> None:
        self.prefix = f"{options.prefix}/" if options.prefix else ""
        self.region = endpoint.region
        self.checks_answers = options.response_checksum_validation == "when_supported"
        self.sends_checksums = options.request_checksum_calculation == "when_supported"
        self._wire = Wire(endpoint, max_idle=options.io_threads + _KEPT_FOR_CALLERS)
        self._quoted_prefix = quote(self.prefix, safe="/~")
        self._signs_payload = options.sign_payload
        self.customer_key_headers = _customer_key_headers(options)
        self.creation_headers = {**_creation_headers(options), **self.customer_key_headers}
        self._is_there = False

    def target(self, name: str) -> str:
        """Return what names the object in a request."""
        return self._quoted_prefix + name.replace("!", "%21")

    def close(self) -> None:
        self._wire.close()

    # -- objects -----------------------------------------------------------------------------

    @contextmanager
    def get(self, call: Call, name: str, start: int, stop: int, *, whole: bool) -> Iterator[HTTPResponse | None]:
        """Give the answer that holds bytes ``[start, stop)`` of an object, or None if there is no such object.

        Args:
            whole: these bytes should be the whole object; the server is asked for its checksum.

        Raises:
            RangeError: the object ends at or before *start*.
        """
        headers = {"x-amz-checksum-mode": "ENABLED"} if whole else {"range": f"bytes={start}-{stop - 1}"}
        with self._wire.exchange(
            "GET", self.target(name), ends_at=call.ends_at, headers={**headers, **self.customer_key_headers}
        ) as response:
            if response.status in (200, 206):
                yield response
            else:
                self._check_miss(call, response.status, response.read(_MAX_ANSWER_NBYTES))
                yield None

    def head(self, call: Call, name: str) -> Head | None:
        """Return what is known of an object, None if there is no such object."""
        answer = self.ask(call, "HEAD", self.target(name), headers=self.customer_key_headers, expected=(200, 404))
        if answer.status == 404:
            self._check_there(call)
            return None
        length = answer.headers.get("content-length", "")
        if not length.isdecimal():
            raise StoreError("the answer to HEAD has no Content-Length", backend=BACKEND, op=call.op, key=call.key)
        modified = answer.headers.get("last-modified")
        return Head(int(length), parsedate_to_datetime(modified).timestamp() if modified else None)

    def put(self, call: Call, name: str, body: Sequence[memoryview], *, only_if_new: bool) -> Answer:
        """Store an object, replacing one that is there. If it must be new and is not, the status is no 200.

        Nor is it while somebody else writes the same object.
        """
        headers = {**self.creation_headers, **self.checksum(body)}
        expected: tuple[int, ...] = (200,)
        if only_if_new:
            headers["if-none-match"] = "*"
            expected = (200, 409, 412)
        return self.ask(call, "PUT", self.target(name), headers=headers, body=body, expected=expected)

    def delete(self, call: Call, name: str) -> None:
        """An object is not there any more, whether it was or not."""
        self.ask(call, "DELETE", self.target(name), expected=(200, 204, 404))

    # -- any request -------------------------------------------------------------------------

    def ask(
        self,
        call: Call,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] = _NONE,
        body: Sequence[memoryview] = (),
        expected: Sequence[int] = (200,),
    ) -> Answer:
        """Return the whole answer to a request, which has one of the *expected* statuses."""
        payload = self._payload(body)
        with self._wire.exchange(
            method, target, ends_at=call.ends_at, headers=headers, body=body, payload=payload
        ) as response:
            answer = Answer(response.status, response.headers, response.read(_MAX_ANSWER_NBYTES))
        if answer.status not in expected:
            raise refusal(answer.status, answer.body, op=call.op, key=call.key)
        return answer

    def checksum(self, body: Sequence[memoryview]) -> dict[str, str]:
        """Return the header with the CRC-32 of what is sent, or nothing where none is wanted.

        As a header it needs no second encoding of the body, which some servers store undecoded.
        """
        if not self.sends_checksums:
            return {}
        crc = 0
        for view in body:
            crc = zlib.crc32(view, crc)
        return {"x-amz-checksum-crc32": encode_crc32(crc)}

    def _payload(self, body: Sequence[memoryview]) -> str:
        if not body:
            return EMPTY_PAYLOAD
        if not self._signs_payload:
            return UNSIGNED_PAYLOAD
        digest = hashlib.sha256()
        for view in body:
            digest.update(view)
        return digest.hexdigest()

    def _check_miss(self, call: Call, status: int, body: bytes) -> None:
        """Return if the answer means that there is no such object; else raise what it means."""
        if status != 404 or code_of(body) == NO_SUCH_BUCKET:
            raise refusal(status, body, op=call.op, key=call.key)
        self._is_there = True

    def _check_there(self, call: Call) -> None:
        """Raise if the bucket itself is missing, which the answer to HEAD for an object cannot tell. Asks once."""
        if not self._is_there:
            with self._wire.exchange("HEAD", "", ends_at=call.ends_at) as response:
                status = response.status
                response.read()
            if status == 404:
                raise coded_refusal(status, NO_SUCH_BUCKET, "", op=call.op, key=call.key)
            self._is_there = status < 500


def encode_crc32(crc: int) -> str:
    """Return a CRC-32 as S3's headers have it."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def _customer_key_headers(options: S3Options) -> dict[str, str]:
    if options.sse_customer_key is None:
        return {}
    key = options.sse_customer_key.reveal()
    digest = hashlib.md5(base64.b64decode(key), usedforsecurity=False).digest()
    return {
        "x-amz-server-side-encryption-customer-algorithm": "AES256",
        "x-amz-server-side-encryption-customer-key": key,
        "x-amz-server-side-encryption-customer-key-md5": base64.b64encode(digest).decode(),
    }


def _creation_headers(options: S3Options) -> dict[str, str]:
    values = {
        "x-amz-storage-class": options.storage_class,
        "x-amz-server-side-encryption": options.sse,
        "x-amz-server-side-encryption-aws-kms-key-id": options.sse_kms_key_id,
    }
    return {name: value for name, value in values.items() if value is not None}
