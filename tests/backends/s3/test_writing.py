"""How objects come into a bucket: with a condition, after a look, or in parts."""

from __future__ import annotations

import re
import threading
from functools import partial

import pytest

from hicache_storage.backends.s3 import S3Store, multipart
from hicache_storage.backends.s3.multipart import cut
from hicache_storage.errors import AccessDenied, StoreError, StoreUnavailable
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.hooks import at_once
from hicache_storage.types import ObjectWrite, WriteResult
from tests.backends.s3.services import BUCKET, S3Service
from tests.backends.s3.stub import Reply, Seen, Stub, refused

pytest_plugins = ["tests.backends.s3.fixtures"]

_LARGE = body_of("large", (11 << 20) + 1)


@pytest.fixture(autouse=True)
def _patience_with_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer over the last request of a failed upload than the store gives it."""
    monkeypatch.setattr(multipart, "_ABORT_WITHIN_S", 30.0)
    monkeypatch.setattr(multipart, "_LATE_ABORT_WITHIN_S", 60.0)


class _Conditions:
    """A script: a server that has If-None-Match."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        stub.script = self

    def __call__(self, seen: Seen) -> Reply | None:
        if seen.method == "PUT" and seen.headers["If-None-Match"] == "*" and seen.path in self.stub.objects:
            return refused(412, "PreconditionFailed")
        return None


def _methods(stub: Stub, path: str) -> list[str]:
    return [seen.method for seen in stub.seen if seen.path == path]


def test_a_new_object_takes_one_request_where_the_server_has_conditions(stub: Stub) -> None:
    _Conditions(stub)

    with S3Store(stub.options(conditional_put="auto")) as store:
        assert store.write("first", [b"0123"]) is WriteResult.STORED
        assert store.write("second", [b"0123"]) is WriteResult.STORED

    assert _methods(stub, "/bucket/first") == _methods(stub, "/bucket/second") == ["PUT"]


def test_a_server_that_ignores_the_condition_is_found_out(stub: Stub) -> None:
    with S3Store(stub.options(conditional_put="auto")) as store:
        store.write("k", [b"0123"])

        assert store.write("k", [b"4567"]) is WriteResult.ALREADY_THERE

    assert stub.objects == {"/bucket/k": b"0123"}
    assert _methods(stub, "/bucket/k") == ["HEAD", "PUT", "HEAD"]


def test_a_server_that_refuses_the_condition_is_written_to_after_a_look(stub: Stub) -> None:
    stub.script = lambda seen: refused(501, "NotImplemented") if seen.headers["If-None-Match"] else None

    with S3Store(stub.options(conditional_put="auto")) as store:
        assert store.write("k", [b"0123"]) is WriteResult.STORED

    assert stub.objects == {"/bucket/k": b"0123"}


def test_a_server_whose_conditions_are_slow_is_written_to_after_a_look(stub: Stub) -> None:
    # Eight writers of one key took 2 s with conditions and 0.03 s without.
    _Conditions(stub)
    stub.server = "SeaweedFS 8000GB 4.48"

    with S3Store(stub.options(conditional_put="auto")) as store:
        assert store.write("k", [b"0123"]) is WriteResult.STORED

    assert _methods(stub, "/bucket/k") == ["HEAD", "PUT"]


def test_the_server_is_asked_once_and_nothing_is_left_of_it(stub: Stub) -> None:
    _Conditions(stub)

    with S3Store(stub.options(conditional_put="auto")) as store:
        at_once(*[partial(store.write, f"k{i}", [b"0123"]) for i in range(8)])

    assert sorted(stub.objects) == [f"/bucket/k{i}" for i in range(8)]
    assert len([seen for seen in stub.seen if "probe" in seen.path]) == 3


def test_who_may_not_delete_can_write_all_the_same(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    conditions = _Conditions(stub)
    stub.script = lambda seen: refused(403, "AccessDenied") if seen.method == "DELETE" else conditions(seen)

    with S3Store(stub.options(conditional_put="auto")) as store:
        assert [store.write(key, [b"0123"]) for key in ("k", "l")] == [WriteResult.STORED] * 2

    assert _methods(stub, "/bucket/k") == _methods(stub, "/bucket/l") == ["PUT"]
    [probe] = {path for path in stub.objects if "probe" in path}
    assert f"s3.probe_left_behind name={probe.removeprefix('/bucket/').replace('%21', '!')}" in caplog.text


def test_who_may_not_write_leaves_no_probe_behind(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    stub.script = lambda seen: refused(403, "AccessDenied")

    with S3Store(stub.options(conditional_put="auto")) as store, pytest.raises(AccessDenied):
        store.write("k", [b"0123"])

    assert "s3.probe_left_behind" not in caplog.text


def test_a_probe_whose_answer_is_lost_is_removed(stub: Stub) -> None:
    def lost(seen: Seen) -> Reply | None:
        if seen.method != "PUT":
            return None
        stub.objects[seen.path] = seen.body
        return refused(503, "SlowDown")

    stub.script = lost

    with S3Store(stub.options(conditional_put="auto")) as store, pytest.raises(StoreUnavailable):
        store.write("k", [b"0123"])

    assert stub.objects == {}


def test_a_question_without_an_answer_is_asked_again(stub: Stub) -> None:
    _Conditions(stub)
    answering = stub.script
    stub.script = lambda seen: refused(503, "SlowDown")

    with S3Store(stub.options(conditional_put="auto")) as store:
        with pytest.raises(StoreUnavailable):
            store.write("k", [b"0123"])
        stub.script = answering

        assert store.write("k", [b"0123"]) is WriteResult.STORED

    assert _methods(stub, "/bucket/k") == ["PUT"]


@pytest.mark.parametrize(("there", "said"), [(b"abcd", WriteResult.ALREADY_THERE), (b"abc", WriteResult.STORED)])
def test_a_refused_condition_is_followed_by_a_look(stub: Stub, there: bytes, said: WriteResult) -> None:
    _Conditions(stub)
    stub.objects["/bucket/k"] = there

    with S3Store(stub.options(conditional_put="always")) as store:
        assert store.write("k", [b"0123"]) is said

    assert len(stub.objects["/bucket/k"]) == 4


def test_a_writer_that_meets_another_looks_what_it_left(stub: Stub) -> None:
    def conflict(seen: Seen) -> Reply | None:
        if seen.headers["If-None-Match"]:
            stub.objects[seen.path] = b"0123"
            return refused(409, "ConditionalRequestConflict")
        return None

    stub.script = conflict

    with S3Store(stub.options(conditional_put="always")) as store:
        assert store.write("k", [b"0123"]) is WriteResult.ALREADY_THERE


def test_conditions_hold_on_a_real_server(s3: S3Service) -> None:
    options = s3.options(conditional_put="always")
    s3.plant(options, "damaged", b"012")

    with S3Store(options) as store:
        said = [store.write(key, [b"0123"]) for key in ("new", "new", "damaged")]

    assert said == [WriteResult.STORED, WriteResult.ALREADY_THERE, WriteResult.STORED]
    assert [s3.observe(options, key) for key in ("new", "damaged")] == [b"0123"] * 2
    assert sorted(s3.names(options)) == ["damaged", "new"]


def test_a_large_object_is_written_in_parts_and_read_as_one(s3: S3Service) -> None:
    options = s3.options(multipart_threshold_nbytes=1 << 20, part_nbytes=5 << 20)
    target = poisoned(1000)

    with S3Store(options) as store:
        assert store.write("large", [_LARGE[:7], _LARGE[7:]]) is WriteResult.STORED
        assert store.write("large", [_LARGE]) is WriteResult.ALREADY_THERE
        assert store.read_into("large", (10 << 20) - 500, [target], object_nbytes=len(_LARGE))

    assert s3.observe(options, "large") == _LARGE
    assert target == _LARGE[(10 << 20) - 500 : (10 << 20) + 500]


def test_large_objects_of_a_batch_are_written_in_parts(s3: S3Service) -> None:
    options = s3.options(multipart_threshold_nbytes=1 << 20, part_nbytes=5 << 20)

    with S3Store(options) as store:
        assert all(store.write_many([ObjectWrite(f"k{i}", [_LARGE]) for i in range(3)]))

    assert [s3.observe(options, f"k{i}") for i in range(3)] == [_LARGE] * 3


class _Upload:
    """A script: a server for one upload in parts, whose last answer may be another."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.parts: dict[int, Seen] = {}
        self.fails_at = ""
        self.last = Reply(200, b"<CompleteMultipartUploadResult/>")
        stub.script = self

    def __call__(self, seen: Seen) -> Reply | None:
        path, _, query = seen.path.partition("?")
        if query and query == self.fails_at:
            return refused(403, "AccessDenied")
        if query == "uploads=":
            return Reply(200, b"<R xmlns='n'><UploadId>id/1&amp;2</UploadId></R>")
        if seen.method == "PUT" and (match := re.fullmatch(r"partNumber=(\d+)&uploadId=id%2F1%262", query)):
            self.parts[int(match[1])] = seen
            return Reply(200, headers={"ETag": f'"etag-{match[1]}"'})
        if seen.method == "POST":
            self.document = seen.body.decode()
            if b"<Error>" not in self.last.body:
                self.stub.objects[path] = b"".join(part.body for _, part in sorted(self.parts.items()))
            return self.last
        return Reply(204) if query else None


_IN_PARTS = {"multipart_threshold_nbytes": 1 << 20, "part_nbytes": 5 << 20}


def test_parts_are_named_in_order_with_what_the_server_said(stub: Stub) -> None:
    upload = _Upload(stub)

    with S3Store(
        stub.options(**_IN_PARTS, storage_class="ONEZONE_IA", request_checksum_calculation="when_supported")
    ) as store:
        store.write("k", [_LARGE])

    assert stub.objects == {"/bucket/k": _LARGE}
    assert re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>&quot;etag-(\d+)&quot;", upload.document.replace('"', "&quot;")) == [
        ("1", "1"), ("2", "2"), ("3", "3")
    ]  # fmt: skip
    assert re.findall(r"<ChecksumCRC32>([^<]+)<", upload.document) == [
        upload.parts[number].headers["x-amz-checksum-crc32"] for number in (1, 2, 3)
    ]
    [begun] = [seen for seen in stub.seen if seen.path.endswith("?uploads=")]
    assert begun.headers["x-amz-storage-class"] == "ONEZONE_IA"
    assert begun.headers["x-amz-checksum-algorithm"] == "CRC32"


def test_an_upload_that_fails_is_taken_back(stub: Stub) -> None:
    _Upload(stub).fails_at = "partNumber=2&uploadId=id%2F1%262"

    with S3Store(stub.options(**_IN_PARTS)) as store, pytest.raises(AccessDenied):
        store.write("k", [_LARGE])

    assert stub.objects == {}
    assert (stub.seen[-1].method, stub.seen[-1].path) == ("DELETE", "/bucket/k?uploadId=id%2F1%262")


def test_an_upload_that_fails_after_the_server_said_200_has_failed(stub: Stub) -> None:
    _Upload(stub).last = Reply(200, b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>")

    with S3Store(stub.options(**_IN_PARTS)) as store, pytest.raises(StoreUnavailable, match="InternalError"):
        store.write("k", [_LARGE])

    assert stub.seen[-1].method == "DELETE"


def test_an_upload_that_cannot_be_taken_back_says_why_it_failed(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    upload = _Upload(stub)
    stub.script = lambda seen: refused(403, "AccessDenied") if seen.method in ("PUT", "DELETE") else upload(seen)

    with S3Store(stub.options(**_IN_PARTS)) as store, pytest.raises(StoreError, match="AccessDenied"):
        store.write("k", [_LARGE])

    assert "s3.upload_left_behind key=k" in caplog.text


def test_an_upload_whose_time_is_over_is_taken_back_behind_the_call(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    upload = _Upload(stub)
    begun, returned, taken_back = threading.Event(), threading.Event(), threading.Event()

    def script(seen: Seen) -> Reply | None:
        if seen.method in ("PUT", "DELETE"):
            begun.set()
            returned.wait(60)
        if seen.method == "DELETE":
            taken_back.set()
        return upload(seen)

    stub.script = script
    with S3Store(stub.options(**_IN_PARTS, deadline_s=0.2)) as store:
        while not begun.is_set():  # On a busy machine the deadline may be over before there is anything to take back.
            with pytest.raises(StoreUnavailable):
                store.write("k", [_LARGE])
        returned.set()

        assert taken_back.wait(60)
    assert "s3.upload_left_behind" not in caplog.text  # as it would be had the call waited for it


@pytest.mark.parametrize("nbytes", [1, 9, 10, 11, 99])
def test_parts_are_the_body_in_order(nbytes: int) -> None:
    body = body_of("cut", nbytes)
    views = [memoryview(body)[: nbytes // 3], memoryview(body)[nbytes // 3 :]]

    parts = cut([view for view in views if view], 10)

    assert b"".join(piece for part in parts for piece in part) == body
    assert [sum(map(len, part)) for part in parts[:-1]] == [10] * (len(parts) - 1)


def test_there_are_never_more_parts_than_the_server_takes() -> None:
    assert len(cut([memoryview(bytes(100_001))], 1)) <= 10_000


def test_the_bucket_of_the_tests_holds_no_unfinished_upload(s3: S3Service) -> None:
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=BUCKET)
