"""/v1/completions and /v1/chat/completions: from a body to prompts, and from their answers to a response."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
from aiohttp import web

from hicache_storage.cli.serve import schema
from hicache_storage.cli.serve.api_error import ApiError
from hicache_storage.cli.serve.body import read_body
from hicache_storage.cli.serve.documents import ChatDocuments, CompletionDocuments, Documents, Wanted
from hicache_storage.cli.serve.generation import Choice, Piece, Services, generate
from hicache_storage.cli.serve.schema import ChatBody, CompletionBody, GenerationBody
from hicache_storage.cli.serve.tokenizer import Tokenizer
from hicache_storage.cli.serve.usage import total
from hicache_storage.engine_integration.reference_engine.messages import Generate

Tokens: TypeAlias = Sequence[int]

_COMPLETION_TOKENS = 16
"""Length of a completion that names none, as OpenAI has it; a chat goes on as long as it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model as clients see it.

    Attributes:
        name: what answers call it.
        aliases: other names that requests may use.
        context_tokens: most tokens of a prompt and its answer together.
    """

    name: str
    aliases: tuple[str, ...]
    context_tokens: int
    vocab_size: int

    def check_name(self, name: str | None) -> None:
        """Raise unless *name* is this model or none."""
        if name is not None and name not in (self.name, *self.aliases):
            raise ApiError(
                f"there is no model {name!r}; this server has {self.name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def new_tokens(self, prompt: Tokens, body: GenerationBody, default: int | None) -> int:
        """Return how long the answer to *prompt* may become.

        Args:
            body: the request that *prompt* is of.
            default: for a request that names no length; None for all that fits.

        Raises:
            ApiError: the prompt is empty, not of this vocabulary, or does not fit with its answer.
        """
        if not prompt:
            raise ApiError("the prompt has no tokens", param=body.prompt_field)
        if max(prompt) >= self.vocab_size:
            raise ApiError(f"token {max(prompt)} is none of the model's {self.vocab_size}", param=body.prompt_field)
        room = self.context_tokens - len(prompt)
        wanted = body.most_new_tokens or min(default or room, room)
        if wanted > room or room < 1:
            raise ApiError(
                f"this model takes {self.context_tokens} tokens; the prompt has {len(prompt)} and the answer "
                f"{max(wanted, 1)}",
                param=body.length_field if room > 0 else body.prompt_field,
                code="context_length_exceeded",
            )
        return wanted


class Completions:
    """The two endpoints that generate text."""

    def __init__(self, model: ServedModel, services: Services) -> None:
        self._model = model
        self._services = services

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer POST /v1/completions."""
        body = schema.parse(await read_body(request), CompletionBody)
        self._model.check_name(body.model)
        given = schema.prompts_of(body.prompt)
        prompts = await asyncio.to_thread(_encoded, self._services.tokenizer, given)
        choices = self._choices(body, prompts, _COMPLETION_TOKENS)
        return await self._answer(request, body, choices, CompletionDocuments(self._model.name, _wanted(body)))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer POST /v1/chat/completions."""
        body = schema.parse(await read_body(request), ChatBody)
        self._model.check_name(body.model)
        messages = schema.chat_messages(body.messages)
        prompt = await asyncio.to_thread(self._services.tokenizer.apply_chat, messages)
        choices = self._choices(body, [prompt], None)
        return await self._answer(request, body, choices, ChatDocuments(self._model.name, _wanted(body)))

    def _choices(self, body: GenerationBody, prompts: Sequence[Tokens], default: int | None) -> list[Choice]:
        request_id = uuid.uuid4().hex
        seed = random.getrandbits(63) if body.seed is None else body.seed % (1 << 63)
        return [
            Choice(
                index=index,
                request=Generate(
                    request_id=f"{request_id}-{index}",
                    tokens=tuple(prompt),
                    max_new_tokens=self._model.new_tokens(prompt, body, default),
                    temperature=1.0 if body.temperature is None else body.temperature,
                    top_p=1.0 if body.top_p is None else body.top_p,
                    seed=seed,
                    stop_tokens=tuple(body.stop_token_ids or ()),
                    ignore_eos=bool(body.ignore_eos),
                    lora_id=body.lora_id,
                    cache_salt=body.cache_salt,
                ),
                stops=body.stops,
            )
            for index, prompt in enumerate(prompts)
        ]

    async def _answer(
        self, request: web.Request, body: GenerationBody, choices: list[Choice], documents: Documents
    ) -> web.StreamResponse:
        if body.stream:
            return await self._stream(request, body, choices, documents)
        await generate(choices, self._services, _endpoint(request), _nowhere)
        return web.Response(body=msgspec.json.encode(documents.whole(choices)), content_type="application/json")

    async def _stream(
        self, request: web.Request, body: GenerationBody, choices: list[Choice], documents: Documents
    ) -> web.StreamResponse:
        """Answer with server-sent events. The status waits for the first token: until then it can still be an error's."""
        events = _EventStream(request)

        async def send(index: int, piece: Piece) -> None:
            is_first = len(choices[index].pieces) == 1
            if piece.text or piece.finish_reason or is_first or body.return_token_ids:
                await events.send(msgspec.json.encode(documents.chunk(choices[index], piece)))

        try:
            await generate(choices, self._services, _endpoint(request), send)
        except ApiError as error:
            if not events.is_open:
                raise
            await events.send(error.body())
            return await events.close()
        if _wanted(body).closing_chunk:
            usage = total(choice.usage for choice in choices)
            await events.send(msgspec.json.encode(documents.usage_chunk(usage)))
        await events.send(b"[DONE]")
        return await events.close()


class _EventStream:
    """A response of server-sent events, which begins with the first of them."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        # Several prompts are answered at the same time, and the first to answer sends the headers.
        self._lock = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        return self._response.prepared

    async def send(self, data: bytes) -> None:
        async with self._lock:
            if not self._response.prepared:
                await self._response.prepare(self._request)
            await self._response.write(b"data: " + data + b"\n\n")

    async def close(self) -> web.StreamResponse:
        await self._response.write_eof()
        return self._response


def _wanted(body: GenerationBody) -> Wanted:
    return Wanted(
        token_ids=bool(body.return_token_ids),
        usage=body.wants_usage,
        cached_tokens_details=bool(body.return_cached_tokens_details),
    )


def _endpoint(request: web.Request) -> str:
    """Return the path as metrics name it: ``completions`` or ``chat/completions``."""
    return request.path.removeprefix("/v1/")


async def _nowhere(_index: int, _piece: Piece) -> None:
    """Take a piece of an answer that is sent as a whole."""


def _encoded(tokenizer: Tokenizer, prompts: list[str] | list[list[int]]) -> list[Tokens]:
    return [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
