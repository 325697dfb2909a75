"""What arrives at the server is the payload, nothing else (field fault F29), and asks for what was configured."""

from __future__ import annotations

import base64
import hashlib
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from hicache_storage.backends.s3 import S3Store
from hicache_storage.backends.s3.wire import Line
from hicache_storage.errors import CorruptObject, StoreError
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.types import ObjectWrite, ReadableBuffer, WriteResult
from tests.backends.s3.stub import Reply, Stub

pytest_plugins = ["tests.backends.s3.fixtures"]

_KEY = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


def _one_part(body: bytes) -> list[ReadableBuffer]:
    return [body]


def _many_parts(body: bytes) -> list[ReadableBuffer]:
    middle = len(body) // 2
    return [body[:1], memoryview(bytearray(body[1:middle])), b"", bytearray(body[middle:-1]), body[-1:]]


@pytest.mark.parametrize("checksums", ["when_required", "when_supported"])
@pytest.mark.parametrize("parts_of", [_one_part, _many_parts])
@pytest.mark.parametrize("nbytes", [5, 8 << 20])
def test_a_server_that_decodes_nothing_stores_exactly_the_payload(
    tls_stub: Stub,
    certificate: tuple[Path, Path],
    nbytes: int,
    parts_of: Callable[..., list[ReadableBuffer]],
    checksums: str,
) -> None:
    body = body_of("payload", nbytes)
    options = tls_stub.options(ca_bundle=str(certificate[0]), request_checksum_calculation=checksums)

    with S3Store(options) as store:
        assert store.write("single", parts_of(body)) is WriteResult.STORED
        assert all(store.write_many([ObjectWrite("batched", parts_of(body))]))

    assert tls_stub.objects == {"/bucket/single": body, "/bucket/batched": body}
    for seen in tls_stub.seen:
        assert seen.headers["Content-Encoding"] is None
        assert seen.headers["Transfer-Encoding"] is None


def test_a_checksum_is_sent_where_it_is_wanted(stub: Stub) -> None:
    body = body_of("sum", 100_000)

    with S3Store(stub.options(request_checksum_calculation="when_supported")) as store:
        store.write("k", [body[:7], body[7:]])

    expected = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    assert stub.seen[-1].headers["x-amz-checksum-crc32"] == expected


def test_no_checksum_is_sent_where_none_is_wanted(stub: Stub) -> None:
    with S3Store(stub.options()) as store:
        store.write("k", [b"x"])

    assert not [name for name in stub.seen[-1].headers if "checksum" in name.lower()]


@pytest.mark.parametrize(("said", "fits"), [(b"0123", True), (b"4567", False)])
def test_a_checksum_of_the_server_is_checked_where_it_is_wanted(stub: Stub, said: bytes, fits: bool) -> None:
    crc = base64.b64encode(zlib.crc32(said).to_bytes(4, "big")).decode()
    stub.script = lambda seen: Reply(200, b"0123", {"x-amz-checksum-crc32": crc})
    target = poisoned(4)

    with S3Store(stub.options(response_checksum_validation="when_supported")) as store:
        if fits:
            assert store.read_into("k", 0, [target], object_nbytes=4)
            assert target == b"0123"
        else:
            with pytest.raises(CorruptObject, match="CRC-32"):
                store.read_into("k", 0, [target], object_nbytes=4)

    assert stub.seen[-1].headers["x-amz-checksum-mode"] == "ENABLED"


def test_a_payload_is_signed_where_it_is_wanted(stub: Stub) -> None:
    body = body_of("signed", 100_000)

    for wanted in (False, True):
        with S3Store(stub.options(sign_payload=wanted)) as store:
            store.write(f"k{wanted}", [body[:7], body[7:]])

    said = [seen.headers["x-amz-content-sha256"] for seen in stub.seen if seen.method == "PUT"]
    assert said == ["UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()]


def test_a_session_token_is_sent(stub: Stub) -> None:
    with S3Store(stub.options(session_token="token")) as store:
        store.stat("k")

    assert {seen.headers["x-amz-security-token"] for seen in stub.seen} == {"token"}


def test_storage_class_and_encryption_are_asked_for(stub: Stub) -> None:
    with S3Store(stub.options(storage_class="ONEZONE_IA", sse="aws:kms", sse_kms_key_id="key-1")) as store:
        store.write("k", [b"x"])
        store.read_into("k", 0, [bytearray(1)])

    put, get = stub.seen[-2:]
    assert put.headers["x-amz-storage-class"] == "ONEZONE_IA"
    assert put.headers["x-amz-server-side-encryption"] == "aws:kms"
    assert put.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    assert get.headers["x-amz-server-side-encryption"] is None


def test_a_customer_key_goes_with_every_request_for_an_object(stub: Stub) -> None:
    with S3Store(stub.options(sse_customer_key=_KEY)) as store:
        store.write("k", [b"x"])
        store.read_into("k", 0, [bytearray(1)])
        store.stat("k")

    sent = {name: {seen.headers[f"x-amz-server-side-encryption-customer-{name}"] for seen in stub.seen if seen.path == "/bucket/k"} for name in ("algorithm", "key")}  # fmt: skip
    assert sent == {"algorithm": {"AES256"}, "key": {_KEY}}


def test_the_prefix_stands_before_every_name(stub: Stub) -> None:
    with S3Store(stub.options(prefix="team a/+kv")) as store:
        store.write("a/b", [b"x"])
        assert store.read_into("a/b", 0, [bytearray(1)])

    assert set(stub.objects) == {"/bucket/team%20a/%2Bkv/a%212Fb"}


@pytest.mark.parametrize(
    "reply",
    [
        Reply(206, b"0123"),
        Reply(206, b"0123", {"Content-Range": "bytes 1-4/9"}),
        Reply(206, b"0123", {"Content-Range": "bytes 0-4/9"}),
        Reply(206, b"012", {"Content-Range": "bytes 0-3/9"}),
        Reply(206, b"01234", {"Content-Range": "bytes 0-4/9"}),
        Reply(206, b"0123", {"Content-Range": "bytes 0-3/*"}),
        Reply(206, b"0123", {"Content-Range": "lines 0-3/9"}),
        Reply(304, b""),
        Reply(200, b"012", claimed_nbytes=4),
        Reply(206, b"012", {"Content-Range": "bytes 0-3/9"}, claimed_nbytes=4),
    ],
)
def test_an_answer_that_contradicts_itself_is_no_hit(stub: Stub, reply: Reply) -> None:
    stub.script = lambda seen: reply

    with S3Store(stub.options()) as store, pytest.raises(StoreError):
        store.read_into("k", 0, [bytearray(4)])


def test_a_server_without_ranges_is_read_all_the_same(stub: Stub) -> None:
    body = body_of("whole", 300_000)
    stub.script = lambda seen: Reply(200, body)
    target = poisoned(1000)

    with S3Store(stub.options()) as store:
        assert store.read_into("k", 200_000, [target], object_nbytes=300_000)

    assert target == body[200_000:201_000]


def test_a_refusal_is_heard_although_the_body_was_not_taken() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        theirs.shutdown(socket.SHUT_RD)

        response = Line(ours).ask("PUT", "/k", {"content-length": "9"}, [memoryview(b"body body")], monotonic() + 60)

        assert response.status == 403
        response.close()
