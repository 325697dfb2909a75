"""The bodies of requests: which fields they have, what fits in them, and which are refused rather than ignored."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from hicache_storage.cli.serve.api_error import ApiError

T = TypeVar("T", bound=Struct)

_MOST_PROMPTS = 256
_MOST_STOPS = 16

Count = Annotated[int, Meta(ge=1, le=1 << 31)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Stop = Annotated[str, Meta(min_length=1, max_length=1024)]

_REFUSED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "regex": (),
    "json_schema": (),
    "ebnf": (),
    "lora_path": (),
}
"""Fields that would change the answer and are not done here, with the values that change nothing; null never does."""


class StreamOptions(Struct):
    """How a stream ends."""

    include_usage: bool | None = None


class GenerationBody(Struct, kw_only=True):
    """What completions and chats have in common. Fields that are not named here and not refused are ignored.

    Attributes:
        ignore_eos: go on until ``max_tokens``.
        stop_token_ids: tokens that end the answer and are not part of its text.
        return_token_ids: have the tokens of prompt and answer beside the text.
        return_cached_tokens_details: have the cached tokens by tier where SGLang's clients look for them.
        lora_id, cache_salt: requests of different ones share no cache.
        prompt_field: the field that holds the prompt.
    """

    prompt_field: ClassVar[str]

    model: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=_MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=_MOST_STOPS)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_cached_tokens_details: bool | None = None
    lora_id: Annotated[str, Meta(max_length=256)] | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def most_new_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def length_field(self) -> str:
        """The field that `most_new_tokens` is from."""
        return "max_tokens"


class CompletionBody(GenerationBody, kw_only=True):
    """Of /v1/completions; `prompts_of` reads the prompt, which is text or tokens, once or several times."""

    prompt_field: ClassVar[str] = "prompt"

    prompt: object


class Part(Struct):
    """A piece of a message's content."""

    type: str
    text: str | None = None


class Message(Struct):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[object] | None = None


class ChatBody(GenerationBody, kw_only=True):
    """Of /v1/chat/completions."""

    prompt_field: ClassVar[str] = "messages"

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None

    @property
    def most_new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def length_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"


class AttachBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Of PUT /hicache/storage-backend, under our names or SGLang's.

    Attributes:
        extra_config: the backend's options, as an object or as a flag takes them.
        must_answer: attach nothing that does not answer every rank; False for a store that comes later.
    """

    backend: str | None = None
    extra_config: dict[str, object] | str | None = None
    hicache_storage_backend: str | None = None
    hicache_storage_backend_extra_config_json: str | None = None
    must_answer: bool = True


def parse(data: bytes, body_type: type[T]) -> T:
    """Return the body that *data* holds.

    Raises:
        ApiError: it is no JSON, a field does not fit, or it asks for what is not done here.
    """
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise ApiError("the body is not a JSON object", code="invalid_json")
    if issubclass(body_type, GenerationBody):
        _refuse(fields)
    try:
        return msgspec.convert(fields, body_type)
    except msgspec.ValidationError as error:
        raise ApiError(str(error), param=_field_of(str(error))) from None


def prompts_of(prompt: object) -> list[str] | list[list[int]]:
    """Return every prompt of a completion's ``prompt``.

    Raises:
        ApiError: it is neither text nor tokens, empty, or too many.
    """
    if isinstance(prompt, str):
        return [prompt]
    first = prompt[0] if isinstance(prompt, list) and prompt else None
    try:
        if isinstance(first, str):
            texts: list[str] = msgspec.convert(prompt, Annotated[list[str], Meta(max_length=_MOST_PROMPTS)])
            return texts
        if isinstance(first, list):
            batch: list[list[int]] = msgspec.convert(
                prompt, Annotated[list[list[TokenId]], Meta(max_length=_MOST_PROMPTS)]
            )
            return batch
        if isinstance(first, int):
            return [msgspec.convert(prompt, list[TokenId])]
    except msgspec.ValidationError as error:
        raise ApiError(str(error), param="prompt") from None
    raise ApiError("expected text, a list of token ids, or a list of several of either kind", param="prompt")


def chat_messages(messages: list[Message]) -> list[dict[str, str]]:
    """Return the conversation as templates take it: role and text.

    Raises:
        ApiError: a message holds something else than text.
    """
    return [{"role": _role(message.role), "content": _text_of(message, at)} for at, message in enumerate(messages)]


def _role(role: str) -> str:
    # The newer name of the same thing, which templates do not know.
    return "system" if role == "developer" else role


def _text_of(message: Message, at: int) -> str:
    where = f"messages[{at}]"
    if message.tool_calls:
        raise ApiError("tools are not supported", param=f"{where}.tool_calls", code="unsupported_parameter")
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise ApiError(
                f"content of type {part.type!r} is not supported; text is",
                param=f"{where}.content",
                code="unsupported_parameter",
            )
    return "".join(part.text or "" for part in message.content)


def _refuse(fields: dict[str, object]) -> None:
    for name in _REFUSED.keys() & fields.keys():
        value = fields[name]
        if value is not None and value not in _REFUSED[name]:
            neutral = " or ".join(msgspec.json.encode(one).decode() for one in _REFUSED[name]) or "null"
            raise ApiError(
                f"{name} is not supported here; leave it out or give {neutral}",
                param=name,
                code="unsupported_parameter",
            )


def _field_of(message: str) -> str | None:
    """Return the field that msgspec's message names."""
    found = re.search(r"`\$\.([\w.\[\]]+)`", message)
    missing = re.search(r"required field `(\w+)`", message)
    return found[1] if found else missing[1] if missing else None
