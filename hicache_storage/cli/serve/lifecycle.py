"""From a started engine to a server that has stopped: serve, drain, end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from hicache_storage.cli import exit_codes
from hicache_storage.cli.output import counted, say
from hicache_storage.cli.serve.admin import Admin, AdminGuard
from hicache_storage.cli.serve.api_error import unavailable
from hicache_storage.cli.serve.app import build_app
from hicache_storage.cli.serve.completions import ServedModel
from hicache_storage.cli.serve.engine import EngineClient
from hicache_storage.cli.serve.generation import Services
from hicache_storage.cli.serve.link import EngineLink
from hicache_storage.cli.serve.metrics import Metrics
from hicache_storage.cli.serve.recorder import Recorder
from hicache_storage.cli.serve.store_state import StoreState
from hicache_storage.cli.serve.tokenizer import Tokenizer
from hicache_storage.errors import ConfigError
from hicache_storage.interrupts import ENDING

_access_log = logging.getLogger(f"{__name__}.access")

_ANSWER_TIMEOUT_S = 2.0
"""How long a response that is finished may take to reach its client."""
_ENGINE_TIMEOUT_S = 10.0
_ACCESS_FORMAT = '%a "%r" %s %b %Tf'


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a server serves, and how it ends.

    Attributes:
        listener: bound, not listening yet.
        drain_timeout_s: how long requests that run may go on after the signal to stop.
    """

    listener: socket.socket
    model: ServedModel
    tokenizer: Tokenizer
    guard: AdminGuard
    store: StoreState | None
    may_attach: bool
    record_path: Path | None
    drain_timeout_s: float


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to *host* and *port*; port 0 takes a free one.

    Raises:
        ConfigError: the address is not this machine's, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return where clients on this machine reach *listener*."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - what it is bound to is shown, not chosen
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


class StopOrder:
    """The order to stop. Made inside the event loop of the server.

    Attributes:
        drain: begin nothing new, let run what runs.
        now: end what runs too.
    """

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()

    def give(self) -> None:
        """Give the order; a second time it means now."""
        (self.now if self.drain.is_set() else self.drain).set()

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Have signals that would end the process give the order, and mean nothing afterwards. For the main thread."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in ENDING}
        # nohup ignores a closed terminal.
        heeded = [number for number in ENDING if number != signal.SIGHUP or before[number] != signal.SIG_IGN]
        try:
            for number in heeded:
                loop.add_signal_handler(number, self.give)
            yield
        finally:
            for number in heeded:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN if self.drain.is_set() else before[number])


async def serve(client: EngineClient, serving: Serving, stop: StopOrder, ready: Callable[[str], None]) -> int:
    """Serve until the order to stop or the engine's end; return the exit status. The engine is closed in any case.

    Args:
        ready: called with the URL once requests are taken.
    """
    link = EngineLink(client)
    recorder: Recorder | None = None
    try:
        metrics = Metrics()
        if serving.record_path is not None:
            recorder = await Recorder.open(serving.record_path, metrics.unrecorded)
        services = Services(link, serving.tokenizer, metrics, recorder)
        admin = Admin(link, serving.guard, store=serving.store, may_attach=serving.may_attach)
        runner = web.AppRunner(
            build_app(serving.model, services, admin, stop.drain),
            # A client that leaves cancels its handler, which aborts the request.
            handler_cancellation=True,
            shutdown_timeout=_ANSWER_TIMEOUT_S,
            access_log=_access_log,
            access_log_format=_ACCESS_FORMAT,
        )
        await _run(runner, serving, link, stop, ready)
    finally:
        if recorder is not None:
            await recorder.close()
        await link.close(timeout_s=_ENGINE_TIMEOUT_S)
        if link.failure is not None:
            say(f"hicache: the engine has ended: {link.failure}")
    return exit_codes.DONE if link.failure is None else exit_codes.MISSING


async def _run(
    runner: web.AppRunner,
    serving: Serving,
    link: EngineLink,
    stop: StopOrder,
    ready: Callable[[str], None],
) -> None:
    try:
        await runner.setup()
        await web.SockSite(runner, serving.listener, backlog=1024).start()
        ready(url_of(serving.listener))
        await _first(stop.drain, link.stopped)
        if link.running:
            what, them = counted(link.running, "request"), "it" if link.running == 1 else "them"
            say(f"stopping: {what} may go on for {serving.drain_timeout_s:g} s; a second signal ends {them} at once")
        with suppress(TimeoutError):
            async with asyncio.timeout(serving.drain_timeout_s):
                await _first(link.idle, stop.now, link.stopped)
        link.end_requests(unavailable("the server is shutting down", code="shutting_down"))
    finally:
        await runner.cleanup()


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of *events* is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
