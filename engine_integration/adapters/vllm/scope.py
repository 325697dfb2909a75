"""Which requests may share KV at all, and what keeps those that must not share apart."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hicache_storage.engine_integration.adapters.vllm.fingerprint import fingerprint, stamps
from hicache_storage.layout import request_seed

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class Scope:
    """Requests of one scope share pages.

    Attributes:
        seed: of their page hashes; see `layout.request_seed`.
    """

    seed: str | None


@dataclass(slots=True)
class _Adapter:
    """What vLLM has had under one adapter's name.

    Attributes:
        content: a name for its content, the same wherever it lies; None if it is not known, or was not always the same.
        stamps: number and folder that the name had -> of the files there, when they were looked at.
    """

    content: str | None
    stamps: dict[tuple[int, str], tuple[tuple[str, int, int, int], ...]] = field(default_factory=dict)


class Scopes:
    """Scopes of requests. For one thread."""

    def __init__(self) -> None:
        self._adapters: dict[str, _Adapter] = {}

    def of(self, request: Request) -> Scope | None:
        """Return the scope of *request*; None if its tokens, adapter and salt don't say all that its KV depends on.

        Images, audio and prompt embeddings are not in the tokens; a session may change its tokens later.
        """
        is_text = not request.mm_features and request.prompt_embeds is None and request.prompt_token_ids is not None
        if not is_text or request.resumable or request.skip_reading_prefix_cache:
            return None
        salt, lora = request.cache_salt or None, request.lora_request
        if lora is None:
            return Scope(request_seed(cache_salt=salt))
        content = self._content(lora)
        return None if content is None else Scope(request_seed(lora_id=content, cache_salt=salt))

    def _content(self, lora: LoRARequest) -> str | None:
        """Return a name for what vLLM has loaded as *lora*; None if it cannot be known.

        VLLM keeps the KV of an adapter under the adapter's name: once the name has stood for two contents, KV of either may
        come from that cache. And where the files of a loaded adapter change, vLLM may load them again at any time.
        """
        known = self._adapters.get(lora.lora_name)
        if lora.load_inplace:
            known = _Adapter(None)
        elif known is None or known.content is not None:
            known = _looked_at(lora, known)
        self._adapters[lora.lora_name] = known
        return known.content


def _looked_at(lora: LoRARequest, known: _Adapter | None) -> _Adapter:
    """Return what is known of the adapter's name once its files have been looked at; takes *known* over."""
    folder, place = Path(lora.lora_path), (lora.lora_int_id, lora.lora_path)
    with suppress(OSError):
        now = stamps(folder)
        if known is None:
            return _Adapter(_name(lora, folder), {place: now})
        if known.stamps.get(place) == now:
            return known
        if place not in known.stamps and _name(lora, folder) == known.content:
            known.stamps[place] = now
            return known
    return _Adapter(None)


def _name(lora: LoRARequest, folder: Path) -> str | None:
    found = fingerprint(folder)
    return None if found is None else f"{lora.lora_name}@{found}"
