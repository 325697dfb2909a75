"""A pytest plugin: stock SGLang on a machine without a GPU, with the CUDA copies between its pools done by torch.

Nothing else of it is changed: pools, controller, threads, tree, factory and storage code are those of its wheel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from unittest import mock

import pytest
import torch
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.test.kits.unified_radix_cache import fixtures

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _stock_sglang_on_a_cpu() -> Iterator[None]:
    with (
        mock.patch.object(fixtures, "get_device", return_value="cpu"),
        _unpinned(HostKVCache),
        _unpinned(MambaPoolHost),
        mock.patch.object(MHATokenToKVPoolHost, "backup_from_device_all_layer", _back_up_mha),
        mock.patch.object(MHATokenToKVPoolHost, "load_to_device_per_layer", _load_mha),
        mock.patch.object(MLATokenToKVPoolHost, "backup_from_device_all_layer", _back_up_mla),
        mock.patch.object(MLATokenToKVPoolHost, "load_to_device_per_layer", _load_mla),
        mock.patch.object(MambaPoolHost, "_copy_tensor_all_layers_lf_pf", _back_up_states),
        mock.patch.object(MambaPoolHost, "_copy_tensor_pf_lf", _load_states),
    ):
        yield


def _unpinned(cls: type[HostKVCache]) -> AbstractContextManager[object]:
    """Patch a host pool's construction: there is no CUDA to register memory with."""
    made = cls.__init__

    def make(self: HostKVCache, *args: object, **options: object) -> None:
        made(self, *args, **{**options, "pin_memory": False})

    return mock.patch.object(cls, "__init__", make)


def host_rows(pool: HostKVCache) -> list[torch.Tensor]:
    """Return the pool's memory as one view per layer and component: ``[pages, page_tokens, heads, width]``.

    MHA: the layers of K, then those of V. MLA: the layers, with one head.
    """
    pages, tokens, whole = pool.page_num, pool.page_size, pool.kv_buffer
    components = whole.unbind(0) if isinstance(pool, MHATokenToKVPoolHost) else (whole,)
    return [rows for part in components for rows in _by_layer(part, pool.layout, pages, tokens)]


def _by_layer(part: torch.Tensor, layout: str, pages: int, tokens: int) -> list[torch.Tensor]:
    match layout:
        case "layer_first":
            return list(part.view(-1, pages, tokens, *part.shape[2:]).unbind(0))
        case "page_first":
            return list(part.view(pages, tokens, *part.shape[1:]).unbind(2))
        case "page_first_direct":
            return list(part.unbind(1))
        case "page_head":
            return list(part.permute(3, 0, 2, 1, 4).unbind(0))
    raise ValueError(f"unknown layout {layout}")


def _back_up_mha(
    self: MHATokenToKVPoolHost, _: object, host_slots: torch.Tensor, device_slots: torch.Tensor, io_backend: str
) -> None:
    for layer, rows in zip((*self.device_k_buffers, *self.device_v_buffers), host_rows(self), strict=True):
        _put(rows, host_slots, layer[device_slots])


def _load_mha(
    self: MHATokenToKVPoolHost,
    _: object,
    host_slots: torch.Tensor,
    device_slots: torch.Tensor,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    rows = host_rows(self)
    self.device_k_buffers[layer_id][device_slots] = _get(rows[layer_id], host_slots)
    self.device_v_buffers[layer_id][device_slots] = _get(rows[self.layer_num + layer_id], host_slots)


def _back_up_mla(
    self: MLATokenToKVPoolHost, _: object, host_slots: torch.Tensor, device_slots: torch.Tensor, io_backend: str
) -> None:
    for layer, rows in zip(self.device_kv_buffers, host_rows(self), strict=True):
        _put(rows, host_slots, layer[device_slots])


def _load_mla(
    self: MLATokenToKVPoolHost,
    _: object,
    host_slots: torch.Tensor,
    device_slots: torch.Tensor,
    layer_id: int,
    io_backend: str,
    **__: object,
) -> None:
    self.device_kv_buffers[layer_id][device_slots] = _get(host_rows(self)[layer_id], host_slots)


def _back_up_states(
    _: MambaPoolHost,
    *,
    src_layers: Sequence[torch.Tensor],
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    **__: object,
) -> None:
    for layer, states in enumerate(src_layers):
        dst[dst_indices, layer, 0] = states[src_indices]


def _load_states(
    _: MambaPoolHost,
    *,
    src: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    **__: object,
) -> None:
    dst[dst_indices] = src[src_indices, layer_id, 0]


def _put(rows: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    tokens = rows.shape[1]
    rows[slots // tokens, slots % tokens] = values


def _get(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    tokens = rows.shape[1]
    return rows[slots // tokens, slots % tokens]
