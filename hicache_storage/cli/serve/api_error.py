"""Errors as OpenAI's clients expect them: a status, and a JSON object that says what is wrong with which field."""

from __future__ import annotations

import msgspec
from aiohttp import web


class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        kind: the error's ``type``, of the few that OpenAI has.
        param: the field that is wrong.
        code: what programs branch on.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """Return the error as JSON."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> web.Response:
        """Return the error as an HTTP response."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return web.Response(status=self.status, body=self.body(), content_type="application/json", headers=headers)


def unavailable(message: str, *, code: str) -> ApiError:
    """Return the error for what may work later; OpenAI's clients try such a request again."""
    return ApiError(message, status=503, kind="server_error", code=code)


def of_http(error: web.HTTPException) -> ApiError:
    """Return aiohttp's own error, such as for an unknown path, in our form."""
    messages = {404: "there is no such path", 405: "the path does not take this method", 413: "the body is too large"}
    message = messages.get(error.status, error.reason)
    return ApiError(message, status=error.status, code=error.reason.lower().replace(" ", "_"))
