"""A server in a thread of the test, and a client that shows every byte of an answer."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from hicache_storage.cli.serve.admin import AdminGuard
from hicache_storage.cli.serve.completions import ServedModel
from hicache_storage.cli.serve.lifecycle import Serving, StopOrder, bind, serve
from hicache_storage.cli.serve.store_state import StoreState
from hicache_storage.cli.serve.tokenizer import Tokenizer
from hicache_storage.config import Secret
from tests.cli.serve.fake_engine import FakeEngine
from tests.cli.serve.toy_tokenizer import VOCAB_SIZE, ToyTokenizer

MODEL = "toy"
CONTEXT_TOKENS = 200
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        document: dict[str, object] = json.loads(self.body)
        return document

    def error(self) -> dict[str, object]:
        """Return the error, which is all that there is."""
        document = json.loads(self.body)
        assert list(document) == ["error"]
        error: dict[str, object] = document["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def events(self) -> list[dict[str, object]]:
        """Return the documents of a stream that ended as it should."""
        *documents, end, rest = self.body.decode().split("\n\n")
        assert (end, rest) == ("data: [DONE]", "")
        return [json.loads(document.removeprefix("data: ")) for document in documents]


@dataclass(slots=True)
class RunningServer:
    """A server that takes requests.

    Attributes:
        status: what `serve` returned, once it has.
    """

    url: str
    engine: FakeEngine
    loop: asyncio.AbstractEventLoop
    stop: StopOrder
    thread: threading.Thread
    status: list[int] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Return the answer to one request; *body* is sent as JSON unless it is bytes."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def post(self, path: str, **fields: object) -> Reply:
        return self.call("POST", path, fields)

    def order_stop(self, times: int = 1) -> None:
        """Give the order that a signal gives, so many times; it may have stopped already."""
        with suppress(RuntimeError):
            for _ in range(times):
                self.loop.call_soon_threadsafe(self.stop.give)

    def wait(self) -> int:
        """Return the exit status of a server that stops."""
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self.status[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a test's server differs from the usual one."""

    host: str = "127.0.0.1"
    token: str | None = None
    tokenizer: Tokenizer = field(default_factory=ToyTokenizer)
    store: StoreState | None = None
    may_attach: bool = True
    record_path: Path | None = None
    drain_timeout_s: float = PATIENCE_S


@contextmanager
def running(options: Options | None = None) -> Iterator[RunningServer]:
    """Run a server on a free port of this machine."""
    options = options or Options()
    engine = FakeEngine()
    started: SimpleQueue[RunningServer | Exception] = SimpleQueue()
    thread = threading.Thread(target=lambda: _run(engine, options, started), daemon=True)
    thread.start()
    server = started.get(timeout=PATIENCE_S)
    if isinstance(server, Exception):
        raise server
    server.thread = thread
    try:
        yield server
    finally:
        server.order_stop(2)
        server.wait()
        assert engine.closed.is_set()


def _run(engine: FakeEngine, options: Options, started: SimpleQueue[RunningServer | Exception]) -> None:
    try:
        asyncio.run(_serve(engine, options, started))
    except Exception as error:
        started.put(error)


async def _serve(engine: FakeEngine, options: Options, started: SimpleQueue[RunningServer | Exception]) -> None:
    stop = StopOrder()
    server = RunningServer("", engine, asyncio.get_running_loop(), stop, threading.current_thread())

    def ready(url: str) -> None:
        server.url = url
        started.put(server)

    with bind("127.0.0.1", 0) as listener:
        serving = Serving(
            listener=listener,
            model=ServedModel(
                name=MODEL, aliases=("/models/toy",), context_tokens=CONTEXT_TOKENS, vocab_size=VOCAB_SIZE
            ),
            tokenizer=options.tokenizer,
            guard=AdminGuard(options.host, None if options.token is None else Secret(options.token)),
            store=options.store,
            may_attach=options.may_attach,
            record_path=options.record_path,
            drain_timeout_s=options.drain_timeout_s,
        )
        server.status.append(await serve(engine, serving, stop, ready))
