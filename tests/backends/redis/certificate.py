"""TLS in front of a server that has none: a certificate for loopback, and a terminator that decrypts and passes on."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import select
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_certificate(folder: Path, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """Write PEM files of a certificate for an address, which is its own authority, and of its key; return their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "cert.pem", folder / "key.pem"
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    certificate.write_bytes(signed.public_bytes(encoding))
    secret.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    return certificate, secret


class TLSTerminator:
    """Listens on loopback with TLS and passes what comes, decrypted, to the server at *port*, and its answers back."""

    def __init__(self, port: int, certificate: Path, key: Path, *, client_ca: Path | None = None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        if client_ca is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(client_ca)
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(plain,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            plain,
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._port)) as server,
        ):
            self._open += [client, server]
            _pass_on(client, server)

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


def _pass_on(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Pass everything on, both ways, until one side ends. One thread: a TLS connection is not for two at once."""
    others = {client: server, server: client}
    while True:
        readable = [client] if client.pending() else select.select([client, server], [], [])[0]
        for source in readable:
            data = source.recv(65536)
            if not data:
                return
            others[source].sendall(data)
