"""One rank's conversation with the model: chunks in, next tokens out, in step with the other ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hicache_storage.cli.demo.ranks import Ranks
from hicache_storage.engine_integration.reference_engine.kv_pool import slots_of
from hicache_storage.engine_integration.reference_engine.llama import LlamaStage
from hicache_storage.kernels import DevicePool

_NOT_MINE = -1


class Session:
    """A sequence and its pages in a pool of its own. Every method is called by all ranks.

    Attributes:
        pool: this rank's KV.
        page_ids: pages of the pool in the order of the sequence, `[num_pages]`.
    """

    def __init__(self, stage: LlamaStage, ranks: Ranks, page_ids: torch.Tensor, page_tokens: int) -> None:
        self.pool: DevicePool = stage.new_pool(len(page_ids), page_tokens)
        self.page_ids = page_ids
        self._stage = stage
        self._ranks = ranks
        self._slots = slots_of(page_ids, page_tokens)

    def compute(self, tokens: Sequence[int], start: int) -> int:
        """Compute the chunk *tokens* at position *start*; return the token that follows."""
        hidden = self._through_stage(tokens, start)
        chosen = int(self._stage.logits(hidden).argmax()) if self._stage.part.last else _NOT_MINE
        return self._ranks.agree_on_token(chosen)

    def extend(self, tokens: Sequence[int], start: int) -> None:
        """Compute the chunk *tokens* at position *start*, for its KV only."""
        if tokens:
            self._through_stage(tokens, start)

    def go_on(self, token: int, start: int, max_new_tokens: int) -> list[int]:
        """Return *token*, which belongs at position *start*, and what greedily follows it.

        Stops after *max_new_tokens* or behind a token that ends the text.
        """
        text = [token]
        while len(text) < max_new_tokens and text[-1] not in self._stage.config.eos_token_ids:
            text.append(self.compute(text[-1:], start + len(text) - 1))
        return text

    def _through_stage(self, tokens: Sequence[int], start: int) -> torch.Tensor:
        part, config = self._stage.part, self._stage.config
        if part.first:
            hidden = self._stage.embed(torch.tensor(tokens, dtype=torch.int64))
        else:
            hidden = self._ranks.receive(torch.empty(len(tokens), config.hidden_size, dtype=self._stage.dtype))
        hidden = self._stage.run(hidden, self.pool, self._slots[: start + len(tokens)])
        if not part.last:
            self._ranks.pass_on(hidden)
        return hidden
