"""What operators may do to a running server, and who is an operator."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

import msgspec
from aiohttp import web

from hicache_storage.cli.serve import schema
from hicache_storage.cli.serve.api_error import ApiError, unavailable
from hicache_storage.cli.serve.body import read_body
from hicache_storage.cli.serve.link import ENGINE_TIMEOUT, EngineLink
from hicache_storage.cli.serve.schema import AttachBody
from hicache_storage.cli.serve.store_state import StoreState, describe_store, without_userinfo
from hicache_storage.config import Secret
from hicache_storage.engine_integration.reference_engine.messages import Attach, Command, Detach, Flush
from hicache_storage.errors import HiCacheError

_TIMEOUT_S = 60.0
_MOST_TIMEOUT_S = 600.0
_FROM_HERE = ("same-origin", "none")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server on *host*."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class AdminGuard:
    """Who may use the admin endpoints.

    With a token: who has it. Without: whoever is on this machine if the server listens on loopback alone, and nobody
    otherwise. A web page in a browser on this machine is not "on this machine".
    """

    host: str
    token: Secret | None

    def check(self, request: web.Request) -> None:
        """Raise `ApiError` unless *request* may use an admin endpoint."""
        if self.token is not None:
            self._check_token(request, self.token)
        elif not is_loopback(self.host):
            raise _forbidden(
                f"admin endpoints are off: this server listens on {self.host} and was started without an admin token "
                "(--admin-token or HICACHE_ADMIN_TOKEN)"
            )
        elif not is_loopback(_host_of(request)) or request.headers.get("Sec-Fetch-Site", "none") not in _FROM_HERE:
            raise _forbidden("admin endpoints without a token are not for web pages: name this server by its address")

    @staticmethod
    def _check_token(request: web.Request, token: Secret) -> None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.reveal().encode())
        if scheme.lower() != "bearer" or not is_right:
            raise ApiError(
                "admin endpoints need the admin token: Authorization: Bearer <token>",
                status=401,
                kind="authentication_error",
                code="invalid_admin_token",
            )


class Admin:
    """/flush_cache and /hicache/storage-backend.

    Args:
        store: what the engine was started with.
        may_attach: the engine has a host tier, through which a store is reached.
    """

    def __init__(self, link: EngineLink, guard: AdminGuard, *, store: StoreState | None, may_attach: bool) -> None:
        self._link = link
        self._guard = guard
        self._store = store
        self._may_attach = may_attach
        self._one_at_a_time = asyncio.Lock()

    async def flush(self, request: web.Request) -> web.Response:
        """Answer GET and POST /flush_cache: device and host forget, once nothing runs; a store keeps what it has."""
        self._guard.check(request)
        async with self._one_at_a_time:
            await self._do(Flush, _timeout_of(request))
        return _json({"flushed": True})

    async def show(self, request: web.Request) -> web.Response:
        """Answer GET /hicache/storage-backend."""
        self._guard.check(request)
        return self._state()

    async def attach(self, request: web.Request) -> web.Response:
        """Answer PUT /hicache/storage-backend."""
        self._guard.check(request)
        body = schema.parse(await read_body(request), AttachBody)
        backend, extra_config = _target_of(body)
        if not self._may_attach:
            raise ApiError("this server has no host tier; start it with --enable-hierarchical-cache", status=409)
        async with self._one_at_a_time:
            if self._store is not None:
                raise ApiError(f"a store is attached: {self._store}; detach it first", status=409, code="attached")
            try:
                state = await asyncio.to_thread(describe_store, backend, extra_config)
            except HiCacheError as error:
                raise ApiError(str(error), param="backend", code="invalid_store") from error
            await self._attach(backend, extra_config, body.must_answer, _timeout_of(request))
            self._store = state
        return self._state()

    async def detach(self, request: web.Request) -> web.Response:
        """Answer DELETE /hicache/storage-backend."""
        self._guard.check(request)
        async with self._one_at_a_time:
            if self._store is None:
                raise ApiError("no store is attached", status=409, code="not_attached")
            await self._do(Detach, _timeout_of(request))
            self._store = None
        return self._state()

    async def _attach(self, backend: str, extra_config: str | None, must_answer: bool, timeout_s: float) -> None:
        try:
            await self._do(lambda command_id: Attach(command_id, backend, extra_config, must_answer), timeout_s)
        except (ApiError, asyncio.CancelledError) as error:
            # A client that did not wait for the answer has cancelled this.
            if not isinstance(error, ApiError) or error.code == ENGINE_TIMEOUT:
                # It may be attached later, when this server says that it is not.
                self._link.tell(Detach)
            raise

    async def _do(self, make: Callable[[int], Command], timeout_s: float) -> None:
        answer = await self._link.ask(make, timeout_s=timeout_s)
        if answer.error is None:
            return
        reason = without_userinfo(answer.error)
        if answer.is_wrong_config:
            raise ApiError(reason, param="backend", code="invalid_store")
        raise unavailable(reason, code="not_done")

    def _state(self) -> web.Response:
        store = self._store
        return _json(
            {
                "attached": store is not None,
                "backend": None if store is None else store.backend,
                "options": {} if store is None else store.options,
            }
        )


def _target_of(body: AttachBody) -> tuple[str, str | None]:
    backend = body.backend or body.hicache_storage_backend
    if not backend:
        raise ApiError("which store? give backend, such as 'file' or 'redis://kv:6379'", param="backend")
    extra = body.extra_config or body.hicache_storage_backend_extra_config_json
    return backend, msgspec.json.encode(extra).decode() if isinstance(extra, dict) else extra


def _timeout_of(request: web.Request) -> float:
    """Return the seconds that ``?timeout=`` gives the engine."""
    text = request.query.get("timeout", str(_TIMEOUT_S))
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = -1.0
    if not 0 < timeout_s <= _MOST_TIMEOUT_S:
        raise ApiError(f"timeout = {text!r}: expected seconds above 0 and at most {_MOST_TIMEOUT_S:g}", param="timeout")
    return timeout_s


def _host_of(request: web.Request) -> str:
    """Return the host that the client called this server by, without a port."""
    host = request.host
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _forbidden(message: str) -> ApiError:
    return ApiError(message, status=403, kind="permission_error", code="admin_disabled")


def _json(document: dict[str, object]) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
