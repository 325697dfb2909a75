"""A decoder with latent attention (MLA), as DeepSeek-V3 has it, for one rank.

A token leaves one row for all heads, `[compressed | key with positions]`, which is what is cached. Keys and values
are never made of it: a query is taken to the compressed space instead, and what it attends to back from there.

    query    [nope | rope]  --nope x key_up-->  [kv_rank | rope]
    attend   query over rows `[kv_rank | rope]`, values are their first kv_rank elements
    output   [kv_rank]  --value_up-->  [value_dim]

Tensor-parallel ranks share the heads; the rows are the same on each of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hicache_storage.engine_integration.reference_engine.decoder import DecoderStage, Rotation, causal_mask, rotate
from hicache_storage.engine_integration.reference_engine.kv_pool import new_latent_pool, rows_of, store_rows
from hicache_storage.engine_integration.reference_engine.weights import LatentLayerWeights, latent_of
from hicache_storage.kernels import DevicePool


class LatentStage(DecoderStage[LatentLayerWeights]):
    """One rank's part of the model."""

    def new_pool(self, num_pages: int, page_tokens: int, dtype: torch.dtype | None = None) -> DevicePool:
        return new_latent_pool(
            num_layers=len(self.part.layers),
            num_slots=num_pages * page_tokens,
            row_dim=latent_of(self.config).row_dim,
            page_tokens=page_tokens,
            dtype=dtype or self.dtype,
            device=str(self.device),
        )

    def attend(
        self, layer: LatentLayerWeights, normed: Tensor, pool: DevicePool, slots: Tensor, rotation: Rotation, index: int
    ) -> Tensor:
        latent, tokens = latent_of(self.config), len(normed)
        rows = pool.keys[index]
        store_rows(rows, slots[-tokens:], self._rows(layer, normed, rotation))
        context = rows_of(rows, slots, self.dtype).transpose(0, 1)
        attended = functional.scaled_dot_product_attention(
            self._queries(layer, normed, rotation).transpose(0, 1)[None],
            context[None],
            context[None, ..., : latent.kv_rank],
            attn_mask=causal_mask(tokens, len(slots), self.device),
            scale=latent.query_dim**-0.5,
            enable_gqa=True,
        )
        values = torch.einsum("hsr,hvr->shv", attended[0], layer.value_up)
        return functional.linear(values.reshape(tokens, -1), layer.output)

    def _rows(self, layer: LatentLayerWeights, normed: Tensor, rotation: Rotation) -> Tensor:
        """Return the rows that are cached, `[S, 1, row_dim]`."""
        kv_rank = latent_of(self.config).kv_rank
        down = functional.linear(normed, layer.kv_down)[:, None, :]
        compressed = self.norm(down[..., :kv_rank], layer.kv_norm)
        return torch.cat((compressed, rotate(_halves(down[..., kv_rank:]), rotation)), dim=-1)

    def _queries(self, layer: LatentLayerWeights, normed: Tensor, rotation: Rotation) -> Tensor:
        """Return queries over cached rows, `[S, heads, row_dim]`."""
        latent = latent_of(self.config)
        if layer.query_down is not None and layer.query_norm is not None:
            normed = self.norm(functional.linear(normed, layer.query_down), layer.query_norm)
        query = functional.linear(normed, layer.query).view(len(normed), -1, latent.query_dim)
        compressed = torch.einsum("shn,hnr->shr", query[..., : latent.nope_dim], layer.key_up)
        return torch.cat((compressed, rotate(_halves(query[..., latent.nope_dim :]), rotation)), dim=-1)


def _halves(states: Tensor) -> Tensor:
    """Return *states* with the even dimensions first: DeepSeek's pairs are neighbours, `rotate` pairs halves."""
    return torch.cat((states[..., ::2], states[..., 1::2]), dim=-1)
