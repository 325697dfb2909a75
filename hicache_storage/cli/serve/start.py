"""Start a server: take the port, find the model, start the engine, serve, and leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import closing

from hicache_storage.cli.output import say
from hicache_storage.cli.serve.admin import AdminGuard, is_loopback
from hicache_storage.cli.serve.arguments import Settings
from hicache_storage.cli.serve.engine import EngineClient, StartEngine
from hicache_storage.cli.serve.lifecycle import Serving, StopOrder, bind, serve
from hicache_storage.cli.serve.options import ServeOptions
from hicache_storage.cli.serve.rank_logs import with_rank_logs
from hicache_storage.cli.serve.recorder import check_new
from hicache_storage.cli.serve.setup import Setup, prepare
from hicache_storage.cli.serve.tokenizer import find_tokenizer
from hicache_storage.interrupts import heard_once


def run_server(settings: Settings, start_engine: StartEngine) -> int:
    """Serve until a signal says stop or the engine ends; return the exit status.

    Before the server is ready a signal is an interruption, after that an order that is carried out.

    Raises:
        HiCacheError: what kept it from starting.
    """
    options = settings.serve
    if options.log_level is not None:
        logging.getLogger().setLevel(options.log_level.upper())
    tell = _clock()
    with heard_once(), closing(bind(options.host, options.port)) as listener:
        _tell_of_admin(options, tell)
        if options.record_requests is not None:
            check_new(options.record_requests)
        setup = prepare(settings, tell)
        serving = _serving(options, setup, listener)
        tell(f"engine: starting {setup.engine.topology} on {setup.engine.device}")
        client = start_engine(*with_rank_logs(setup.engine, options.log_folder, tell))
        try:
            return asyncio.run(_serve(client, serving, lambda url: _be_ready(url, setup, tell)))
        except BaseException:
            # The server may have been interrupted before the engine was in its hands.
            client.close(timeout_s=0)
            raise


async def _serve(client: EngineClient, serving: Serving, ready: Callable[[str], None]) -> int:
    stop = StopOrder()
    with stop.by_signals():
        return await serve(client, serving, stop, ready)


def _serving(options: ServeOptions, setup: Setup, listener: socket.socket) -> Serving:
    return Serving(
        listener=listener,
        model=setup.model,
        tokenizer=find_tokenizer(setup.folder),
        guard=AdminGuard(options.host, options.admin_token),
        store=setup.store,
        may_attach=options.enable_hierarchical_cache,
        record_path=options.record_requests,
        drain_timeout_s=options.drain_timeout_s,
    )


def _tell_of_admin(options: ServeOptions, tell: Callable[[str], None]) -> None:
    if options.admin_token is None and not is_loopback(options.host):
        tell(
            f"warning: --host {options.host} without --admin-token or HICACHE_ADMIN_TOKEN: "
            "/flush_cache and /hicache/storage-backend are off"
        )


def _be_ready(url: str, setup: Setup, tell: Callable[[str], None]) -> None:
    tell(f"ready: {setup.model.name} on {url}, up to {setup.model.context_tokens} tokens a request")
    print(url, flush=True)


def _clock() -> Callable[[str], None]:
    """Return a function that shows a step on stderr with the seconds since now."""
    started_s = time.monotonic()

    def tell(text: str) -> None:
        say(f"[{time.monotonic() - started_s:5.1f} s] {text}")

    return tell
