"""Which requests may share KV at all, and what keeps those that must not share apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hicache_storage.engine_integration.adapters.vllm.fingerprint import fingerprint
from hicache_storage.layout import request_seed

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request


class Scopes:
    """Seeds of requests. For one thread."""

    def __init__(self) -> None:
        self._adapters: dict[tuple[str, str], str | None] = {}

    def is_shared(self, request: Request) -> bool:
        """Return whether the request's tokens, adapter and salt say all that its KV depends on.

        Images, audio and prompt embeddings are not in the tokens; a session may change its tokens later.
        """
        is_text = not request.mm_features and request.prompt_embeds is None and request.prompt_token_ids is not None
        if not is_text or request.resumable or request.skip_reading_prefix_cache:
            return False
        lora = request.lora_request
        return lora is None or (not lora.load_inplace and self._adapter(lora) is not None)

    def seed(self, request: Request) -> str | None:
        """Return the seed of a request that `is_shared`; see `layout.request_seed`."""
        lora = request.lora_request
        return request_seed(
            lora_id=None if lora is None else self._adapter(lora), cache_salt=request.cache_salt or None
        )

    def _adapter(self, lora: LoRARequest) -> str | None:
        """Return a name for the adapter's content, the same wherever it lies; None if it cannot be known."""
        place = (lora.lora_name, lora.lora_path)
        if place not in self._adapters:
            found = fingerprint(Path(lora.lora_path))
            self._adapters[place] = None if found is None else f"{lora.lora_name}@{found}"
        return self._adapters[place]
