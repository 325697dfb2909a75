"""What operators type: URLs, aliases, contradictions; and that secrets stay secret."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hicache_storage import registry
from hicache_storage.backends.s3 import S3Options, S3Store
from hicache_storage.config import Secret, from_mapping
from hicache_storage.errors import ConfigError
from hicache_storage.registry import resolve_store

_CLASS = "hicache_storage.backends.s3:S3Store"
_BASE64_KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@pytest.fixture(autouse=True)
def _no_account_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _resolved(**given: object) -> S3Options:
    options = resolve_store(_CLASS, from_mapping(given, "test"), environ={}).options
    assert isinstance(options, S3Options)
    return options


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://kv", "kv", ""),
        ("s3://kv/", "kv", ""),
        ("s3://kv/team/model", "kv", "team/model"),
        ("s3://kv/team/model/", "kv", "team/model"),
        ("s3://kv/a%20b", "kv", "a b"),
    ],
)
def test_a_url_names_bucket_and_prefix(url: str, bucket: str, prefix: str) -> None:
    options = _resolved(url=url)

    assert (options.bucket, options.prefix) == (bucket, prefix)


def test_a_store_url_gives_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("s3", _CLASS, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "known_backends", lambda: {"s3": point})

    resolved = resolve_store("s3://kv/team?endpoint_url=http%3A%2F%2Fh%3A9000&region=eu-west-1&io_threads=4", {}, {})

    options = resolved.options
    assert isinstance(options, S3Options)
    assert (options.bucket, options.prefix, options.endpoint_url) == ("kv", "team", "http://h:9000")
    assert (options.region, options.io_threads) == ("eu-west-1", 4)


def test_the_names_of_other_projects_are_understood() -> None:
    options = _resolved(
        s3_bucket="kv", s3_endpoint="http://h:1", region_name="eu-west-1", addressing_style="path",
        aws_access_key_id="AKID", aws_secret_access_key="secret", multipart_threshold="32MiB",
    )  # fmt: skip

    assert (options.bucket, options.endpoint_url, options.region) == ("kv", "http://h:1", "eu-west-1")
    assert (options.addressing, options.access_key_id, options.multipart_threshold_nbytes) == ("path", "AKID", 32 << 20)
    assert options.secret_access_key == Secret("secret")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "bucket"),
        ({"url": "http://kv"}, "url"),
        ({"url": "s3://kv", "bucket": "other"}, "contradict"),
        ({"url": "s3://kv/a", "prefix": "b"}, "contradict"),
        ({"bucket": "kv", "prefix": "a//b"}, "prefix"),
        ({"bucket": "kv", "prefix": "a/../b"}, "prefix"),
        ({"bucket": "kv--x-s3"}, "Express"),
        ({"bucket": "kv", "addressing": "host"}, "addressing"),
        ({"bucket": "kv", "endpoint_url": "127.0.0.1:9000"}, "endpoint_url"),
        ({"bucket": "kv", "endpoint_url": "http://h:no"}, "endpoint_url"),
        ({"bucket": "kv", "access_key_id": "AKID"}, "secret_access_key"),
        ({"bucket": "kv", "session_token": "token"}, "session_token"),
        ({"bucket": "kv", "io_threads": 0}, "io_threads"),
        ({"bucket": "kv", "deadline_s": 0}, "deadline_s"),
        ({"bucket": "kv", "deadline_s": "inf"}, "deadline_s"),
        ({"bucket": "kv", "part_nbytes": "1MiB"}, "part_nbytes"),
        ({"bucket": "kv", "multipart_threshold_nbytes": "6GiB"}, "multipart_threshold_nbytes"),
        ({"bucket": "kv", "sse": "none"}, "sse"),
        ({"bucket": "kv", "sse_kms_key_id": "id"}, "sse"),
        ({"bucket": "kv", "sse_customer_key": "c2hvcnQ="}, "sse_customer_key"),
        ({"bucket": "kv", "sse_customer_key": _BASE64_KEY, "sse": "AES256"}, "sse_customer_key"),
    ],
)
def test_a_wrong_option_names_itself(given: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        _resolved(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"url": "s3://key:hush-hush@kv/a"},
        {"url": "s3://kv:hush-hush/a"},
        {"bucket": "kv", "endpoint_url": "http://key:hush-hush@h:1"},
        {"bucket": "kv", "endpoint_url": "http://h:1/?token=hush-hush"},
        {"bucket": "kv", "secret_access_key": "hush-hush"},
        {"bucket": "kv", "session_token": "hush-hush"},
        {"bucket": "kv", "sse_customer_key": "hush-hush"},
        {"bucket": "kv", "secret_access_key": ["hush-hush"]},
    ],
)
def test_errors_do_not_show_secrets(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        _resolved(**given)

    assert "hush-hush" not in f"{caught.value!r} {caught.value}"


def test_options_do_not_show_secrets() -> None:
    options = _resolved(
        url="s3://kv", access_key_id="AKID", secret_access_key="hush-hush", session_token="hush-hush",
        sse_customer_key=_BASE64_KEY,
    )  # fmt: skip

    assert "hush-hush" not in repr(options)
    assert _BASE64_KEY not in repr(options)


def test_without_credentials_a_store_is_not_made() -> None:
    with pytest.raises(ConfigError, match="access_key_id"):
        S3Store(S3Options(bucket="kv"))


@pytest.mark.parametrize(
    "given", [{"profile": "nobody"}, {"ca_bundle": "/does/not/exist"}, {"region": "not a region!"}]
)
def test_what_the_sdk_refuses_is_a_wrong_option(given: dict[str, object]) -> None:
    options = _resolved(bucket="kv", access_key_id="AKID", secret_access_key="secret", **given)

    with pytest.raises(ConfigError):
        S3Store(options)


def test_credentials_come_from_the_usual_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    S3Store(S3Options(bucket="kv")).close()
