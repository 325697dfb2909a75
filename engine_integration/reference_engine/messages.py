"""What a server and the engine's ranks say to each other: encoded by msgspec, never pickled.

A server sends commands to the first rank, which passes them on to all others, so that every rank's scheduler sees the
same commands in the same step. Events come back from the first rank.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Continue a prompt.

    Attributes:
        tokens: the prompt, at least one token.
        max_new_tokens: most tokens to generate, at least one.
        temperature: 0 takes the likeliest token.
        top_p: share of the probability that is sampled from.
        seed: of the sampling; equal seeds give equal tokens.
        stop_tokens: tokens that end the text; the model's own are added unless *ignore_eos*.
        lora_id, cache_salt: requests of different ones share no cache.
    """

    request_id: str
    tokens: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    lora_id: str | None = None
    cache_salt: str | None = None


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End a request, in whatever state it is. Unknown ids are ignored: it may just have ended."""

    request_id: str


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Forget what device and host have cached, once no request runs; answered by `Answered`."""

    command_id: int


class Attach(msgspec.Struct, frozen=True, tag=True):
    """Use a store from now on; answered by `Answered`.

    Attributes:
        backend: a registered name, URL or ``module:Class``.
        extra_config: JSON of its options.
        must_answer: only if it has answered every rank; otherwise it may come later.
    """

    command_id: int
    backend: str
    extra_config: str | None = None
    must_answer: bool = False


class Detach(msgspec.Struct, frozen=True, tag=True):
    """Use no store any more; answered by `Answered`."""

    command_id: int


class Report(msgspec.Struct, frozen=True, tag=True):
    """Say what was counted since the start; answered by `Answered` with ``counters``."""

    command_id: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End every request and every rank."""


Command: TypeAlias = Generate | Abort | Flush | Attach | Detach | Report | Shutdown


class Token(msgspec.Struct, frozen=True, tag=True):
    """One more token of a request.

    Attributes:
        finish_reason: None while it goes on; ``stop``, ``length`` or ``abort`` with the last event of a request. The token
            of ``abort`` is -1.
        cached_device, cached_host, cached_store: tokens of the prompt that were not computed, by tier; with the first token.
    """

    request_id: str
    token: int
    finish_reason: str | None = None
    cached_device: int = 0
    cached_host: int = 0
    cached_store: int = 0


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A request that could not be served; its only or last event.

    Attributes:
        reason: why, in words.
        is_too_large: it can never fit the device pool; others failed for a reason that may pass.
    """

    request_id: str
    reason: str
    is_too_large: bool = False


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The answer to a command with an id.

    Attributes:
        error: why it was not done; None if it was.
        is_wrong_config: what the command asks for is wrong; other reasons may pass.
        counters: of all ranks together, by name.
    """

    command_id: int
    error: str | None = None
    is_wrong_config: bool = False
    counters: dict[str, int] = {}


Event: TypeAlias = Token | Failed | Answered

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
