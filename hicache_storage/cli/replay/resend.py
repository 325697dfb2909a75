"""Sending the requests of a trace to a running server again, and noting what it answers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp
import msgspec

from hicache_storage.engine_integration.replay import Trace, TraceLine, TraceRequest
from hicache_storage.errors import StoreUnavailable

_CONNECT_TIMEOUT_S = 10.0
_SILENCE_TIMEOUT_S = 600.0
_MOST_REASON_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When requests are sent.

    Attributes:
        speed: times between arrivals are divided by this; None sends each as soon as it may be sent.
        concurrency: most requests under way; None is without limit.
    """

    speed: float | None = 1.0
    concurrency: int | None = None


@dataclass(slots=True)
class Answer:
    """What became of one request.

    Attributes:
        wanted: the answer of the trace; empty where it has none.
        late_s: how much later than its time it was sent, because as many as may be were under way.
        cached: tokens of the prompt that the server had, by tier; empty where it does not say.
        cached_tokens: all of them.
        first_token_s, total_s: from sending it to its first token, and to its end.
        failure: why there is no whole answer; None if there is one.
    """

    prompt_tokens: int
    wanted: list[int]
    late_s: float = 0.0
    cached: dict[str, int] = field(default_factory=dict)
    cached_tokens: int = 0
    output: list[int] = field(default_factory=list)
    first_token_s: float | None = None
    total_s: float = 0.0
    failure: str | None = None

    @property
    def same(self) -> bool | None:
        """Whether it is the answer of the trace; None where there is none to compare, or none came."""
        is_known = self.failure is None and self.wanted and self.output
        return self.output == self.wanted if is_known else None


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    cached_tokens_by_tier: dict[str, int] = {}


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None


class _Error(msgspec.Struct):
    message: str = ""


class _Chunk(msgspec.Struct):
    """What is read of one event of a stream, or of an error's body."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def model_of(url: str) -> str:
    """Return the name of the first model of the server at *url*.

    Raises:
        StoreUnavailable: there is no server, or none that speaks OpenAI's protocol.
    """
    try:
        async with _session() as session, session.get(f"{url}/v1/models") as response:
            response.raise_for_status()
            return msgspec.json.decode(await response.read(), type=_Models).data[0].id
    except (aiohttp.ClientError, TimeoutError, ValueError, IndexError, msgspec.MsgspecError) as error:
        reason = f"no server that lists its models at {url}: {error or type(error).__name__}"
        raise StoreUnavailable(reason) from error


async def resend(trace: Trace, url: str, model: str, pace: Pace, on_answer: Callable[[], object]) -> list[Answer]:
    """Send every request of *trace* in order and return what became of each, in that order.

    Args:
        on_answer: called when one has been answered, or has failed.
    """
    room = asyncio.Semaphore(pace.concurrency or sys.maxsize)
    answers: list[Answer] = []
    started_s = time.monotonic()

    async with _session() as session, asyncio.TaskGroup() as tasks:

        async def perform(request: TraceRequest, answer: Answer) -> None:
            try:
                await _send(session, url, _body(request, model), answer)
            finally:
                room.release()
            on_answer()

        for request in trace:
            due_s = started_s if pace.speed is None else started_s + request.arrival_s / pace.speed
            await asyncio.sleep(due_s - time.monotonic())
            await room.acquire()
            late_s = 0.0 if pace.speed is None else time.monotonic() - due_s
            answers.append(Answer(len(request.tokens), _line_of(request).output_ids or [], late_s))
            tasks.create_task(perform(request, answers[-1]))
    return answers


def _line_of(request: TraceRequest) -> TraceLine:
    return request.line or TraceLine()


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_SILENCE_TIMEOUT_S)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))


def _body(request: TraceRequest, model: str) -> dict[str, object]:
    """Return the request's body: as many tokens are asked for as were answered, or at least one."""
    line = _line_of(request)
    body: dict[str, object] = {
        "model": model,
        "prompt": list(request.tokens),
        "max_tokens": max(1, len(line.output_ids or ()) or line.output_length or 0),
        "temperature": line.temperature or 0.0,
        "top_p": line.top_p,
        "seed": line.seed,
        "stop_token_ids": line.stop_token_ids,
        # Without the tokens of an answer only its length can be repeated.
        "ignore_eos": line.ignore_eos or not line.output_ids,
        "lora_id": line.lora_id,
        "cache_salt": line.cache_salt,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    return {name: value for name, value in body.items() if value is not None}


async def _send(session: aiohttp.ClientSession, url: str, body: dict[str, object], answer: Answer) -> None:
    sent_s = time.monotonic()
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                answer.failure = _reason(response.status, await response.read())
                return
            async for chunk in _chunks(response):
                _take(chunk, answer, time.monotonic() - sent_s)
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
        answer.failure = answer.failure or str(error)[:_MOST_REASON_CHARS] or type(error).__name__
    answer.total_s = time.monotonic() - sent_s


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[_Chunk]:
    """Yield the events of a stream, a line each; aiohttp's own lines have a limit that a long prompt's tokens are over."""
    decoder = msgspec.json.Decoder(_Chunk)
    rest = b""
    async for received in response.content.iter_any():
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield decoder.decode(data)


def _take(chunk: _Chunk, answer: Answer, elapsed_s: float) -> None:
    if chunk.error is not None:
        answer.failure = chunk.error.message[:_MOST_REASON_CHARS] or "an error without a message"
    if chunk.choices and answer.first_token_s is None:
        answer.first_token_s = elapsed_s
    for choice in chunk.choices:
        answer.output += choice.token_ids or []
    if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
        answer.cached = chunk.usage.prompt_tokens_details.cached_tokens_by_tier
        answer.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens


def _reason(status: int, body: bytes) -> str:
    try:
        error = msgspec.json.decode(body, type=_Chunk).error
    except msgspec.MsgspecError:
        error = None
    return f"HTTP {status}: {error.message}"[:_MOST_REASON_CHARS] if error is not None else f"HTTP {status}"
