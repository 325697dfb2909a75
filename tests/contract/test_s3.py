from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings

from hicache_storage.backends.s3 import S3Options, S3Store
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import StoreContract
from hicache_storage.testing.model import store_machine
from tests.backends.s3.services import S3Service

pytest_plugins = ["tests.backends.s3.fixtures"]


class TestS3Store(StoreContract):
    bounded = False
    s3: S3Service
    options: S3Options

    @pytest.fixture
    def store(self, s3: S3Service) -> Iterator[ObjectStore]:
        self.s3 = s3
        self.options = s3.options()
        with S3Store(self.options) as store:
            yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        self.s3.plant(self.options, key, body)

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        seen = self.s3.observe(self.options, key)
        if seen is not None:
            return seen
        self.s3.server.settle()  # It may still be storing what a killed writer sent.
        return self.s3.observe(self.options, key)

    def second(self, store: ObjectStore) -> ObjectStore:
        return S3Store(self.options)

    def reopen(self, store: ObjectStore) -> ObjectStore:
        self.s3.server.kill()
        self.s3.server.start()
        return S3Store(self.options)

    def opening_code(self, store: ObjectStore) -> str:
        secrets = ("secret_access_key",)
        given = {field.name: getattr(self.options, field.name) for field in dataclasses.fields(self.options)}
        return (
            "from pathlib import PosixPath\n"
            "from hicache_storage.backends.s3 import S3Options, S3Store\n"
            "from hicache_storage.config import Secret\n"
            f"values = { {name: value for name, value in given.items() if name not in secrets}!r}\n"
            f"secret = Secret({self.s3.server.secret_access_key!r})\n"
            "store = S3Store(S3Options(**values, secret_access_key=secret))\n"
        )


class TestS3Model:
    """The state machine, in a test that can ask for the server."""

    def test_the_store_equals_the_specification(self, s3: S3Service) -> None:
        @contextmanager
        def new_store() -> Iterator[ObjectStore]:
            with S3Store(s3.options()) as store:
                yield store

        case = store_machine(new_store)("runTest")
        case.settings = settings(case.settings, max_examples=20)  # type: ignore[attr-defined]  # hypothesis adds it
        result = case.run()

        assert result is not None
        assert not result.failures + result.errors
