"""Every path of the server, its limits, and its errors as JSON."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from hicache_storage.cli.serve.admin import Admin
from hicache_storage.cli.serve.api_error import ApiError, of_http, unavailable
from hicache_storage.cli.serve.completions import Completions, ServedModel
from hicache_storage.cli.serve.generation import Services
from hicache_storage.cli.serve.metrics import CONTENT_TYPE
from hicache_storage.engine_integration.reference_engine.messages import Report

_log = logging.getLogger(__name__)

_MOST_BODY_NBYTES = 32 << 20
_REPORT_TIMEOUT_S = 5.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(model: ServedModel, services: Services, admin: Admin, stopping: asyncio.Event) -> web.Application:
    """Return the application: what each path is answered with.

    Args:
        stopping: once it is set nothing new is begun, also on connections that are open.
    """
    completions = Completions(model, services)
    info = _Info(model, services, stopping)

    def gated(handler: _Handler) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            _check_open(stopping)
            return await handler(request)

        return handle

    app = web.Application(client_max_size=_MOST_BODY_NBYTES, middlewares=[answer_errors])
    app.add_routes(
        [
            web.post("/v1/completions", gated(completions.complete)),
            web.post("/v1/chat/completions", gated(completions.chat)),
            web.get("/v1/models", info.models),
            web.get("/v1/models/{name:.+}", info.model),
            web.get("/health", info.health),
            web.get("/metrics", info.metrics),
            web.get("/flush_cache", gated(admin.flush), allow_head=False),
            web.post("/flush_cache", gated(admin.flush)),
            web.get("/hicache/storage-backend", admin.show),
            web.put("/hicache/storage-backend", gated(admin.attach)),
            web.delete("/hicache/storage-backend", gated(admin.detach)),
        ]
    )
    return app


@web.middleware
async def answer_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer with what *handler* answers, or with its error as JSON."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPException as error:
        return of_http(error).response()
    except ConnectionError:
        # The client left; there is nobody to answer. So aiohttp ends it too where it notices first; it would log this one.
        raise asyncio.CancelledError from None
    except Exception:  # noqa: BLE001 - the last resort of a server
        # Only a fault of this server comes here. The client learns that there was one, the log which.
        _log.exception("request.failed method=%s path=%s", request.method, request.path)
        return ApiError("an error of the server", status=500, kind="server_error", code="internal_error").response()


class _Info:
    """What the server says of itself."""

    def __init__(self, model: ServedModel, services: Services, stopping: asyncio.Event) -> None:
        self._model = model
        self._services = services
        self._stopping = stopping
        self._started_s = int(time.time())

    async def models(self, _request: web.Request) -> web.Response:
        """Answer GET /v1/models."""
        return _json({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        """Answer GET /v1/models/NAME."""
        self._model.check_name(request.match_info["name"])
        return _json(self._card())

    async def health(self, _request: web.Request) -> web.Response:
        """Answer GET /health: 200 while requests are taken."""
        link = self._services.link
        _check_open(self._stopping)
        if link.stopped.is_set():
            raise link.gone()
        return _json({"status": "ok"})

    async def metrics(self, _request: web.Request) -> web.Response:
        """Answer GET /metrics; an engine that does not answer costs its own counters alone."""
        link = self._services.link
        try:
            counters = (await link.ask(Report, timeout_s=_REPORT_TIMEOUT_S)).counters
        except ApiError:
            counters = None
        text = self._services.metrics.text(counters, running=link.running)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    def _card(self) -> dict[str, object]:
        return {
            "id": self._model.name,
            "object": "model",
            "created": self._started_s,
            "owned_by": "hicache",
            "max_model_len": self._model.context_tokens,
        }


def _check_open(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        raise unavailable("the server is shutting down", code="shutting_down")


def _json(document: dict[str, object]) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
