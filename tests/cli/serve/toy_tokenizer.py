"""A tokenizer whose tokens are bytes: everything about it can be seen in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache_storage.cli.serve.api_error import ApiError

EOS = 256
VOCAB_SIZE = 257


class ToyTokenizer:
    """Tokens are UTF-8 bytes; those of characters come one by one. `EOS` has no text."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < EOS).decode(errors="replace")

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if messages[0]["role"] == "assistant":
            raise ApiError("a conversation begins with the user", param="messages")
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages) + "<assistant>")
