"""One rank's part of computing a batch: through its stage, on to the next one, until every rank knows the tokens.

The pieces of a batch are computed one after the other, each in matrix products of its own. So a request's result
does not depend, to the bit, on which others are computed with it; a faster engine would share the products.
Stages work on different pieces at the same time, and meet at the end of each batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hicache_storage.engine_integration.controller.pools import LoadJob
from hicache_storage.engine_integration.parallel.agree import agree_mins
from hicache_storage.engine_integration.reference_engine.kv_pool import slots_of
from hicache_storage.engine_integration.reference_engine.model import Stage
from hicache_storage.engine_integration.reference_engine.peers import Peers
from hicache_storage.engine_integration.reference_engine.pieces import Computed, Piece
from hicache_storage.engine_integration.reference_engine.sampling import choose
from hicache_storage.errors import HiCacheError
from hicache_storage.kernels import DevicePool

_NOT_MINE = -1


class _Restore:
    """The loads that one piece waits for, layer by layer."""

    def __init__(self, loads: Sequence[LoadJob]) -> None:
        self.error: HiCacheError | None = None
        self._loads = loads

    def await_layer(self, layer: int) -> None:
        """Return once *layer* can be read, or will not arrive: the others need this rank's part of the piece."""
        for load in self._loads:
            try:
                load.layers.wait(layer)
            except HiCacheError as error:
                self.error = error


@dataclass(frozen=True, slots=True)
class Forward:
    """Computes batches with one rank's stage; see `Pieces`. Every rank calls `compute` with equal batches."""

    stage: Stage
    pool: DevicePool
    peers: Peers

    def compute(self, batch: Sequence[Piece]) -> list[Computed]:
        """Return what became of each piece; its KV is in its pages.

        A piece whose restore failed on any rank is not restored on every rank, and its token means nothing.
        """
        tokens, restored = [], []
        for piece in batch:
            restore = _Restore(piece.loads)
            tokens.append(self._compute(piece, restore))
            restored.append(restore.error is None)
        agreed = self._agree_on_restores(batch, restored)
        wanted = [token for piece, token in zip(batch, tokens, strict=True) if piece.sampling is not None]
        known = iter(self.peers.agree_on_tokens(wanted) if wanted else [])
        return [
            Computed(None if piece.sampling is None else next(known), is_restored)
            for piece, is_restored in zip(batch, agreed, strict=True)
        ]

    def _agree_on_restores(self, batch: Sequence[Piece], restored: list[bool]) -> list[bool]:
        """Return for each piece whether it was restored everywhere. Without loads there is nothing to agree on."""
        if not any(piece.loads for piece in batch):
            return restored
        mins = agree_mins(self.peers.group, "restore", lambda: tuple(map(int, restored)), len(batch))
        return [bool(one) for one in mins]

    def _compute(self, piece: Piece, restore: _Restore) -> int:
        part, device = self.stage.part, self.stage.device
        if part.first:
            hidden = self.stage.embed(torch.tensor(piece.tokens, dtype=torch.int64))
        else:
            shape = (len(piece.tokens), self.stage.config.hidden_size)
            hidden = self.peers.receive(torch.empty(shape, dtype=self.stage.dtype, device=device))
        hidden = self.stage.run(hidden, self.pool, self._slots(piece), restore.await_layer)
        if not part.last:
            self.peers.send(hidden)
        elif piece.sampling is not None:
            return choose(self.stage.logits(hidden), piece.sampling, piece.stop)
        return _NOT_MINE

    def _slots(self, piece: Piece) -> Tensor:
        """Return the slots of every token up to the end of *piece*: what it computes lies behind its prefix."""
        pages = torch.tensor(piece.pages, dtype=torch.int64, device=self.stage.device)
        return slots_of(pages, self.pool.page_tokens)[: piece.stop]
