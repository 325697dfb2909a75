"""An empty store on every backend, each on a real server, and what is in it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine.engine_config import StoreTarget
from hicache_storage.layout import ObjectKey
from hicache_storage.registry import open_store
from hicache_storage.store import ObjectStore
from hicache_storage.testing.services.mooncake import MooncakeService
from hicache_storage.testing.services.redis_server import RedisServer
from tests.backends.s3.services import BUCKET, S3Service

PLUGINS = ["tests.backends.redis.services", "tests.backends.s3.fixtures", "tests.backends.mooncake.services"]
"""For a test file's ``pytest_plugins``."""

BACKENDS = ("file", "redis", "s3", "mooncake")

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Place:
    """A store as an engine is told of it."""

    backend: str
    options: Mapping[str, object]

    @property
    def target(self) -> StoreTarget:
        return StoreTarget(backend=self.backend, extra_config=json.dumps(self.options))

    def open(self) -> ObjectStore:
        return open_store(self.backend, self.options)

    def keys(self) -> list[str]:
        """Return the keys of all pages' objects."""
        with self.open() as store:
            return [info.key for info in store.list_keys("") if "_L" in info.key]

    def chunks(self) -> Counter[str]:
        """Return how many objects each chunk of the pages has, by the end of their keys."""
        return Counter(ObjectKey.parse(key).chunk.suffix for key in self.keys())


def file_place(folder: Path, **options: object) -> Place:
    return Place("file", {"path": str(folder), "io_threads": 2, **options})


def redis_place(server: RedisServer, **options: object) -> Place:
    return Place("redis", {"url": server.url, "key_prefix": f"e{next(_numbers)}:", "io_threads": 2, **options})


def s3_place(service: S3Service, **options: object) -> Place:
    server = service.server
    return Place(
        "s3",
        {
            "bucket": BUCKET,
            "prefix": f"e{next(_numbers)}",
            "endpoint_url": server.endpoint_url,
            "addressing": "path",
            "access_key_id": server.access_key_id,
            "secret_access_key": server.secret_access_key,
            "io_threads": 4,
            **options,
        },
    )


def mooncake_place(cluster: MooncakeService, **options: object) -> Place:
    small = {"local_buffer_nbytes": "4MiB", "io_threads": 2}
    return Place("mooncake", {**cluster.options, **small, "key_prefix": f"e{next(_numbers)}/", **options})


def place_on(backend: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    """Return an empty place; its server is one for the whole run, started when it is first needed."""
    if backend == "redis":
        return redis_place(request.getfixturevalue("redis_server"))
    if backend == "s3":
        return s3_place(request.getfixturevalue("s3"))
    if backend == "mooncake":
        return mooncake_place(request.getfixturevalue("mooncake_cluster"))
    return file_place(folder)
