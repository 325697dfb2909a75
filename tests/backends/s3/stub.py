"""A server that says what a test wants, and keeps what it was sent exactly as it was sent."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from hicache_storage.backends.s3 import S3Options
from hicache_storage.config import from_mapping, resolve

IO_THREADS = 4


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Reply:
    """An answer. *claimed_nbytes* makes its Content-Length another than the body's."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    claimed_nbytes: int | None = None


def refused(status: int, code: str, message: str = "") -> Reply:
    return Reply(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())


class Stub:
    """Objects by path, the least that S3 does; *script* may answer in its place."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.seen: list[Seen] = []
        self.script: Callable[[Seen], Reply | None] = lambda seen: None
        self.url = ""
        self.server = "Stub/1"

    def options(self, **given: object) -> S3Options:
        values: dict[str, object] = {
            "bucket": "bucket",
            "endpoint_url": self.url,
            "access_key_id": "key",
            "secret_access_key": "secret",
            "conditional_put": "never",
            "io_threads": IO_THREADS,
            "deadline_s": 60.0,
        }
        return resolve(S3Options, "s3", [from_mapping(values | given, "test")], environ={})[0]

    def answer(self, seen: Seen) -> Reply:
        self.seen.append(seen)
        return self.script(seen) or self._default(seen)

    def _default(self, seen: Seen) -> Reply:
        path, _, query = seen.path.partition("?")
        if path.endswith("/bucket/") and not query:
            return Reply(200)
        if query:
            return refused(501, "NotImplemented")
        if seen.method == "PUT":
            self.objects[path] = seen.body
            return Reply(200, headers={"ETag": '"etag"'})
        body = self.objects.pop(path, None) if seen.method == "DELETE" else self.objects.get(path)
        if seen.method == "DELETE":
            return Reply(204)
        if body is None:
            return refused(404, "NoSuchKey")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", seen.headers.get("Range", ""))
        if asked is None:
            return Reply(200, body)
        start, stop = int(asked[1]), min(int(asked[2]) + 1, len(body))
        if start >= len(body):
            return refused(416, "InvalidRange")
        return Reply(206, body[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: Stub

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = self.stub.answer(Seen(self.command, self.path, self.headers, body))
        self.send_response(reply.status)
        claimed = len(reply.body) if reply.claimed_nbytes is None else reply.claimed_nbytes
        if reply.status != 204:
            self.send_header("Content-Length", str(claimed))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)
        if claimed != len(reply.body):
            self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _any  # noqa: N815 - the names that http.server looks for

    def version_string(self) -> str:
        return self.stub.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
        """Nothing: what came is in `Stub.seen`."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: clients may hang up."""


@contextmanager
def stub_server(certificate: tuple[Path, Path] | None = None) -> Iterator[Stub]:
    """Give a stub that answers on loopback, over TLS if there is a certificate."""
    stub = Stub()
    handler = type("Handler", (_Handler,), {"stub": stub})
    server = _Server(("127.0.0.1", 0), handler)
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    stub.url = f"{scheme}://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
