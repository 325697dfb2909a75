"""Listing and deleting by the page."""

from __future__ import annotations

import socket
from urllib.parse import parse_qs, urlsplit

import pytest

from hicache_storage.backends.s3 import S3Store, wire
from hicache_storage.backends.s3.dial import Route, dial
from hicache_storage.errors import AccessDenied, StoreError
from hicache_storage.types import HIT, MISS, Status
from tests.backends.s3.services import S3Service
from tests.backends.s3.stub import Reply, Seen, Stub, refused

pytest_plugins = ["tests.backends.s3.fixtures"]


def _page(names: list[str], token: str = "", encoding: str = "") -> Reply:
    contents = "".join(
        f"<Contents><Key>{name}</Key><Size>4</Size><LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
        for name in names
    )
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    head = f"<EncodingType>{encoding}</EncodingType>" if encoding else ""
    return Reply(200, f"<ListBucketResult xmlns='n'>{head}{contents}{more}</ListBucketResult>".encode())


def test_a_listing_goes_on_where_the_page_before_ended(stub: Stub) -> None:
    pages = {"": _page(["kv/a"], "token/1+2"), "token/1+2": _page(["kv/b!2Fc"])}
    stub.script = lambda seen: pages[parse_qs(urlsplit(seen.path).query).get("continuation-token", [""])[0]]

    with S3Store(stub.options(prefix="kv")) as store:
        listed = list(store.list_keys())

    assert [(info.key, info.nbytes, info.modified_s) for info in listed] == [
        ("a", 4, 1767323045.0), ("b/c", 4, 1767323045.0)
    ]  # fmt: skip
    assert {parse_qs(urlsplit(seen.path).query)["prefix"][0] for seen in stub.seen} == {"kv/"}


@pytest.mark.parametrize(("encoding", "name"), [("url", "team%2B+a%2Fk"), ("", "team+ a/k")])
def test_names_are_decoded_if_the_server_encoded_them(stub: Stub, encoding: str, name: str) -> None:
    stub.script = lambda seen: _page([name], encoding=encoding)

    with S3Store(stub.options(prefix="team+ a")) as store:
        assert [info.key for info in store.list_keys()] == ["k"]


def test_objects_of_others_are_not_listed(s3: S3Service) -> None:
    options = s3.options()
    s3.plant(options, "mine", b"x")
    for name in ("not!mine", "folder/file.txt", "!probe-1"):
        s3.client.put_object(Bucket=options.bucket, Key=f"{options.prefix}/{name}", Body=b"x")

    with S3Store(options) as store:
        assert [info.key for info in store.list_keys()] == ["mine"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"not XML"])
def test_an_answer_that_is_no_listing_is_an_error(stub: Stub, body: bytes) -> None:
    stub.script = lambda seen: Reply(200, body)

    with S3Store(stub.options()) as store, pytest.raises(StoreError, match="XML"):
        list(store.list_keys())


def test_an_object_that_cannot_be_deleted_fails_alone(stub: Stub) -> None:
    stub.objects |= {"/bucket/a": b"x", "/bucket/b!2F": b"x", "/bucket/b%212F": b"x", "/bucket/c": b"x"}

    def refuse_one(seen: Seen) -> Reply | None:
        if seen.path != "/bucket/?delete=":
            return None
        return Reply(200, b"<DeleteResult><Error><Key>b!2F</Key><Code>AccessDenied</Code></Error></DeleteResult>")

    stub.script = refuse_one

    with S3Store(stub.options()) as store:
        outcomes = store.delete_many(["a", "b/", "missing", "c"])

    assert [outcome.status for outcome in outcomes] == [Status.HIT, Status.FAILED, Status.MISS, Status.HIT]
    assert isinstance(outcomes[1].error, AccessDenied)


def test_many_objects_are_deleted_a_thousand_at_a_time(stub: Stub) -> None:
    stub.script = lambda seen: Reply(200, b"<DeleteResult/>")
    keys = [f"k{i}" for i in range(1001)]

    with S3Store(stub.options()) as store:
        assert store.delete_many(keys) == [HIT] * 1001

    requests = [seen.body.count(b"<Key>") for seen in stub.seen if seen.method == "POST"]
    assert requests == [1000, 1]


def test_what_is_gone_meanwhile_counts_as_deleted(stub: Stub) -> None:
    stub.objects |= {"/bucket/a": b"x"}
    gone = b"<DeleteResult><Error><Key>a</Key><Code>NoSuchKey</Code></Error></DeleteResult>"
    stub.script = lambda seen: Reply(200, gone) if seen.method == "POST" else None

    with S3Store(stub.options()) as store:
        assert store.delete_many(["a", "missing"]) == [HIT, MISS]


def test_a_bucket_can_be_created(stub: Stub) -> None:
    stub.script = lambda seen: Reply(200)

    S3Store(stub.options(create_bucket=True, region="eu-central-1")).close()

    [seen] = stub.seen
    assert (seen.method, seen.path) == ("PUT", "/bucket/")
    assert b"<LocationConstraint>eu-central-1</LocationConstraint>" in seen.body


def test_a_bucket_that_is_there_need_not_be_created(stub: Stub) -> None:
    stub.script = lambda seen: Reply(409, b"<Error><Code>BucketAlreadyOwnedByYou</Code></Error>")

    S3Store(stub.options(create_bucket=True)).close()


def test_a_bucket_that_cannot_be_created_leaves_no_connection(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.script = lambda seen: refused(403, "AccessDenied")
    made: list[socket.socket] = []

    def dialled(route: Route, ends_at: float) -> socket.socket:
        made.append(dial(route, ends_at))
        return made[-1]

    monkeypatch.setattr(wire, "dial", dialled)

    with pytest.raises(AccessDenied):
        S3Store(stub.options(create_bucket=True))

    assert [connection.fileno() for connection in made] == [-1]
