"""The bytes of a request's body, for which nobody waits for ever."""

from __future__ import annotations

import asyncio

from aiohttp import web

from hicache_storage.cli.serve.api_error import ApiError

TIMEOUT_S = 60.0


async def read_body(request: web.Request) -> bytes:
    """Return the whole body.

    Raises:
        ApiError: it has not come within `TIMEOUT_S`.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise ApiError(f"no body within {TIMEOUT_S:g} s", status=408, code="request_timeout") from None
