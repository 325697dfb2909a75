"""Answers in the form of OpenAI's completions and chat completions, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from hicache_storage.cli.serve.generation import Choice, Piece
from hicache_storage.cli.serve.usage import Usage, total

Document: TypeAlias = dict[str, object]


class Documents(Protocol):
    """The documents of one answer."""

    def whole(self, choices: Sequence[Choice]) -> Document:
        """Return the answer in one document."""
        ...

    def chunk(self, choice: Choice, piece: Piece) -> Document:
        """Return the chunk for the newest piece of *choice*."""
        ...

    def usage_chunk(self, usage: Usage) -> Document:
        """Return the chunk behind all others, which has the usage; for requests that want any."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a request wants beside the text.

    Attributes:
        token_ids: each choice lists its tokens too.
        usage: a stream ends with a chunk of usage; all others then say that they have none.
        cached_tokens_details: cached tokens by tier, in the place where SGLang's clients look for them.
    """

    token_ids: bool
    usage: bool
    cached_tokens_details: bool

    @property
    def closing_chunk(self) -> bool:
        """Whether a stream has a chunk behind the last piece of text."""
        return self.usage or self.cached_tokens_details


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What every document of an answer begins with."""

    model: str
    wanted: Wanted
    prefix: str
    kind: str
    chunk_kind: str
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created_s: int = field(default_factory=lambda: int(time.time()))

    def document(self, kind: str, choices: list[Document]) -> Document:
        return {
            "id": f"{self.prefix}-{self.request_id}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }

    def whole(self, parts: list[Document], usage: Usage) -> Document:
        return self.document(self.kind, parts) | {"usage": usage.document()} | self._details(usage)

    def chunk(self, part: Document) -> Document:
        document = self.document(self.chunk_kind, [part])
        return document | {"usage": None} if self.wanted.usage else document

    def usage_chunk(self, usage: Usage) -> Document:
        counted: Document = {"usage": usage.document()} if self.wanted.usage else {}
        return self.document(self.chunk_kind, []) | counted | self._details(usage)

    def token_ids(self, tokens: list[int], prompt: Sequence[int] | None) -> Document:
        if not self.wanted.token_ids:
            return {}
        return {"token_ids": tokens} | ({} if prompt is None else {"prompt_token_ids": prompt})

    def _details(self, usage: Usage) -> Document:
        if not self.wanted.cached_tokens_details:
            return {}
        return {"sglext": {"cached_tokens_details": usage.sglang_details()}}


class CompletionDocuments:
    """Of /v1/completions."""

    def __init__(self, model: str, wanted: Wanted) -> None:
        self._head = _Head(
            model=model,
            wanted=wanted,
            prefix="cmpl",
            kind="text_completion",
            chunk_kind="text_completion",
        )

    def whole(self, choices: Sequence[Choice]) -> Document:
        parts = [self._part(one, one.text, one.tokens, one.finish_reason, is_first=True) for one in choices]
        return self._head.whole(parts, total(choice.usage for choice in choices))

    def chunk(self, choice: Choice, piece: Piece) -> Document:
        is_first = len(choice.pieces) == 1
        return self._head.chunk(self._part(choice, piece.text, [piece.token], piece.finish_reason, is_first=is_first))

    def usage_chunk(self, usage: Usage) -> Document:
        return self._head.usage_chunk(usage)

    def _part(
        self, choice: Choice, text: str, tokens: list[int], finish_reason: str | None, *, is_first: bool
    ) -> Document:
        part: Document = {"index": choice.index, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return part | self._head.token_ids(tokens, choice.request.tokens if is_first else None)


class ChatDocuments:
    """Of /v1/chat/completions."""

    def __init__(self, model: str, wanted: Wanted) -> None:
        self._head = _Head(
            model=model,
            wanted=wanted,
            prefix="chatcmpl",
            kind="chat.completion",
            chunk_kind="chat.completion.chunk",
        )

    def whole(self, choices: Sequence[Choice]) -> Document:
        parts = []
        for choice in choices:
            message = {"role": "assistant", "content": choice.text, "refusal": None}
            part: Document = {"index": choice.index, "message": message, "logprobs": None}
            part |= {"finish_reason": choice.finish_reason}
            parts.append(part | self._head.token_ids(choice.tokens, choice.request.tokens))
        return self._head.whole(parts, total(choice.usage for choice in choices))

    def chunk(self, choice: Choice, piece: Piece) -> Document:
        is_first = len(choice.pieces) == 1
        delta: Document = {"role": "assistant"} if is_first else {}
        if piece.text or is_first:
            delta |= {"content": piece.text}
        part: Document = {"index": choice.index, "delta": delta, "logprobs": None}
        part |= {"finish_reason": piece.finish_reason}
        return self._head.chunk(part | self._head.token_ids([piece.token], choice.request.tokens if is_first else None))

    def usage_chunk(self, usage: Usage) -> Document:
        return self._head.usage_chunk(usage)
