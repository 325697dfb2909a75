"""Where the SDK says that a bucket is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hicache_storage.backends.s3 import S3Options
from hicache_storage.backends.s3.session import Endpoint, find_endpoint
from hicache_storage.config import from_mapping, resolve


def _found(given: Mapping[str, object]) -> Endpoint:
    values = {"bucket": "kv-bucket", "access_key_id": "AKID", "secret_access_key": "secret", **given}
    return find_endpoint(resolve(S3Options, "s3", [from_mapping(values, "test")], environ={})[0])


@pytest.mark.parametrize(
    ("given", "authority", "base_path"),
    [
        ({}, "kv-bucket.s3.amazonaws.com", "/"),
        ({"region": "eu-central-1"}, "kv-bucket.s3.eu-central-1.amazonaws.com", "/"),
        ({"region": "eu-central-1", "addressing": "path"}, "s3.eu-central-1.amazonaws.com", "/kv-bucket/"),
        ({"bucket": "with.dots", "region": "eu-central-1"}, "s3.eu-central-1.amazonaws.com", "/with.dots/"),
        ({"region": "cn-north-1"}, "kv-bucket.s3.cn-north-1.amazonaws.com.cn", "/"),
        ({"endpoint_url": "http://127.0.0.1:9000"}, "127.0.0.1:9000", "/kv-bucket/"),
        ({"endpoint_url": "http://[::1]:9000"}, "[::1]:9000", "/kv-bucket/"),
        ({"endpoint_url": "https://s3.example.org", "addressing": "path"}, "s3.example.org", "/kv-bucket/"),
        ({"endpoint_url": "https://s3.example.org", "addressing": "virtual"}, "kv-bucket.s3.example.org", "/"),
        ({"endpoint_url": "http://127.0.0.1:9000/gateway"}, "127.0.0.1:9000", "/gateway/kv-bucket/"),
    ],
)
def test_the_bucket_is_where_the_sdk_would_look(given: dict[str, object], authority: str, base_path: str) -> None:
    endpoint = _found(given)

    assert (endpoint.authority, endpoint.base_path) == (authority, base_path)
    assert endpoint.region == given.get("region", "us-east-1")
    assert (endpoint.route.tls is None) == str(given.get("endpoint_url", "https")).startswith("http:")


def test_the_environment_names_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")

    assert _found({}).authority == "127.0.0.1:9000"


def test_proxies_of_the_environment_are_used_as_the_sdk_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:hush%21@proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    proxy = _found({"endpoint_url": "http://s3.example.org"}).route.proxy

    assert proxy is not None
    assert (proxy.host, proxy.port, proxy.user) == ("proxy.example.org", 3128, "user:hush!")
    assert "hush" not in repr(proxy)
    assert _found({"endpoint_url": "http://127.0.0.1:9000"}).route.proxy is None
