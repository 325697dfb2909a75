"""One line of a trace, as a server's recorder writes it and as a replay reads it. Format: docs/replay.md."""

from __future__ import annotations

import msgspec


class TraceLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request: a prompt, as *hash_ids* with *input_length* or as *token_ids*, and what is known of its answer.

    Attributes:
        timestamp: when it came in, in milliseconds since the trace began; None is 0.
        input_length: tokens of the prompt; may be left out beside *token_ids*.
        output_length: tokens of the answer, as many as were generated.
        output_ids: those tokens.
        temperature, top_p, seed: how they were sampled; None is greedy, and 1 for *top_p*.
        stop_token_ids, ignore_eos: which tokens end the answer.
        lora_id, cache_salt: requests of different ones share no cache.
    """

    timestamp: float | None = None
    input_length: int | None = None
    output_length: int | None = None
    hash_ids: list[int] | None = None
    token_ids: list[int] | None = None
    output_ids: list[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    lora_id: str | None = None
    cache_salt: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids or ()) if self.input_length is None else self.input_length
