"""One prompt's answer as it comes: text without stop strings, what it used, how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hicache_storage.cli.serve.api_error import ApiError
from hicache_storage.cli.serve.link import EngineLink
from hicache_storage.cli.serve.metrics import Metrics
from hicache_storage.cli.serve.recorder import Recorder
from hicache_storage.cli.serve.text import Detokenizer, StopFinder
from hicache_storage.cli.serve.tokenizer import Tokenizer
from hicache_storage.cli.serve.usage import Usage
from hicache_storage.engine_integration.reference_engine.messages import Generate, Token

ABANDONED = "abandoned"
"""How a request ended whose client left."""
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to an answer.

    Attributes:
        finish_reason: with the last piece.
    """

    text: str
    token: int
    finish_reason: str | None = None


Sink: TypeAlias = Callable[[int, Piece], Awaitable[None]]
"""Takes the pieces of the answer to the prompt with that index."""


@dataclass(frozen=True, slots=True)
class Services:
    """What every generation needs, for as long as the server runs."""

    link: EngineLink
    tokenizer: Tokenizer
    metrics: Metrics
    recorder: Recorder | None


@dataclass(slots=True)
class Choice:
    """One of a request's prompts and its answer so far.

    Attributes:
        index: its place in the request.
        pieces: in order; the last one has the finish reason.
    """

    index: int
    request: Generate
    stops: tuple[str, ...]
    pieces: list[Piece] = field(default_factory=list)
    usage: Usage = field(init=False)

    def __post_init__(self) -> None:
        self.usage = Usage(prompt_tokens=len(self.request.tokens))

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> list[int]:
        return [piece.token for piece in self.pieces]

    @property
    def finish_reason(self) -> str | None:
        return self.pieces[-1].finish_reason if self.pieces else None


async def generate(choices: Sequence[Choice], services: Services, endpoint: str, sink: Sink) -> None:
    """Have all *choices* answered at the same time; *sink* gets each piece as it comes.

    Whoever cancels this aborts the requests in the engine.

    Raises:
        ApiError: of the first choice that failed; the others are aborted.
        ConnectionError: *sink* has nobody left to send to.
    """
    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for choice in choices:
                group.create_task(_Run(choice, services, endpoint).run(sink))
    except* (ApiError, ConnectionError) as errors:
        failure = errors.exceptions[0]
    if failure is not None:
        raise failure


class _Run:
    """The generation of one choice."""

    def __init__(self, choice: Choice, services: Services, endpoint: str) -> None:
        self._choice = choice
        self._services = services
        self._endpoint = endpoint
        self._started_s = time.monotonic()
        self._detokenizer = Detokenizer(services.tokenizer.decode, choice.request.tokens)
        self._finder = StopFinder(choice.stops)

    async def run(self, sink: Sink) -> None:
        recorder = self._services.recorder
        record = None if recorder is None else recorder.begin(self._choice.request)
        outcome = FAILED
        try:
            outcome = await self._generate(sink)
        except (asyncio.CancelledError, ConnectionError):
            outcome = ABANDONED
            raise
        finally:
            usage = self._choice.usage
            self._services.metrics.ended(self._endpoint, outcome, usage, time.monotonic() - self._started_s)
            if recorder is not None and record is not None:
                recorder.finish(record, self._choice.tokens)

    async def _generate(self, sink: Sink) -> str:
        with self._services.link.generate(self._choice.request) as tokens:
            async for event in tokens:
                self._count(event)
                piece = self._piece(event)
                self._choice.pieces.append(piece)
                await sink(self._choice.index, piece)
                if piece.finish_reason is not None:
                    return piece.finish_reason
        return FAILED

    def _count(self, event: Token) -> None:
        choice = self._choice
        if not choice.pieces:
            self._services.metrics.first_token(self._endpoint, time.monotonic() - self._started_s)
            choice.usage = Usage(
                prompt_tokens=choice.usage.prompt_tokens,
                cached_device=event.cached_device,
                cached_host=event.cached_host,
                cached_store=event.cached_store,
            )
        choice.usage = choice.usage.one_more()

    def _piece(self, event: Token) -> Piece:
        # A token that ends the answer is no part of its text.
        text = "" if event.finish_reason == "stop" else self._detokenizer.push(event.token)
        shown = self._finder.push(text)
        if event.finish_reason is not None:
            shown += self._finder.push(self._detokenizer.finish())
            shown += self._finder.finish()
        return Piece(shown, event.token, "stop" if self._finder.found else event.finish_reason)
