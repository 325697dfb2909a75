"""Many objects at once: pages of the bucket's listing, and deleting a page of objects."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from hicache_storage.backends.s3.bucket import Bucket, Call
from hicache_storage.backends.s3.errors import BACKEND, coded_refusal
from hicache_storage.errors import StoreError

DELETED_AT_ONCE = 1000
"""Most objects that one request deletes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing; *name* is without the store's prefix."""

    name: str
    nbytes: int
    modified_s: float | None


def list_page(bucket: Bucket, call: Call, prefix: str, token: str | None) -> tuple[list[Entry], str | None]:
    """Return some objects whose names start with *prefix*, and what to ask with for the next ones, None at the end."""
    query = {"encoding-type": "url", "list-type": "2", "prefix": bucket.prefix + prefix}
    if token is not None:
        query["continuation-token"] = token
    asked = "&".join(f"{name}={quote(query[name], safe='-_.~')}" for name in sorted(query))
    skipped = len(bucket.prefix)
    document = _parse(call, bucket.ask(call, "GET", f"?{asked}").body)
    decode = unquote_plus if _text(document, "EncodingType") == "url" else str
    entries = [_entry(element, decode(_text(element, "Key"))[skipped:]) for element in _all(document, "Contents")]
    more = _text(document, "IsTruncated") == "true"
    return entries, (_text(document, "NextContinuationToken") or None) if more else None


def delete_page(bucket: Bucket, call: Call, names: Sequence[str]) -> dict[str, StoreError]:
    """Delete up to `DELETED_AT_ONCE` objects; return the errors of those that are still there, by name.

    Objects that are not there are no error.
    """
    keys = "".join(f"<Object><Key>{escape(bucket.prefix + name)}</Key></Object>" for name in names)
    body = f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>{keys}</Delete>'.encode()
    digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    answer = bucket.ask(call, "POST", "?delete=", headers={"content-md5": digest}, body=[memoryview(body)])
    errors: dict[str, StoreError] = {}
    for element in _all(_parse(call, answer.body), "Error"):
        code = _text(element, "Code")
        if code != "NoSuchKey":
            name = _text(element, "Key")[len(bucket.prefix) :]
            errors[name] = coded_refusal(0, code, _text(element, "Message"), op=call.op)
    return errors


def create_bucket(bucket: Bucket, call: Call) -> None:
    """The bucket is there, and ours or somebody else's."""
    body = []
    if bucket.region != "us-east-1":
        place = f"<LocationConstraint>{escape(bucket.region)}</LocationConstraint>"
        body = [memoryview(f"<CreateBucketConfiguration>{place}</CreateBucketConfiguration>".encode())]
    bucket.ask(call, "PUT", "", body=body, expected=(200, 409))


def _entry(element: ET.Element, name: str) -> Entry:
    modified = _text(element, "LastModified")
    modified_s = datetime.fromisoformat(modified).timestamp() if modified else None
    return Entry(name, int(_text(element, "Size")), modified_s)


def _parse(call: Call, body: bytes) -> ET.Element:
    try:
        # Not a stranger's document: the server that signed requests go to; and expat limits expansion.
        return ET.fromstring(body)  # noqa: S314
    except ET.ParseError as error:
        reason = f"the answer is no XML: {error}"
        raise StoreError(reason, backend=BACKEND, op=call.op, key=call.key) from error


def _all(element: ET.Element, tag: str) -> Iterator[ET.Element]:
    """Yield the children with this tag, in any namespace: not every server has one."""
    return (child for child in element if child.tag.rpartition("}")[2] == tag)


def _text(element: ET.Element, tag: str) -> str:
    return next((child.text or "" for child in _all(element, tag)), "")
