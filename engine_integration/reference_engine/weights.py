"""One rank's weights, taken out of a safetensors folder without reading the rest of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hicache_storage.engine_integration.reference_engine.model_config import ModelConfig
from hicache_storage.engine_integration.reference_engine.partition import Part
from hicache_storage.errors import ConfigError

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; matrices are `[out, in]`, cut to the rank's heads and columns."""

    attention_norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class StageWeights:
    """What one rank computes with; the ends of the pipeline hold the tables the others lack."""

    layers: tuple[LayerWeights, ...]
    embedding: Tensor | None
    final_norm: Tensor | None
    head: Tensor | None


class TensorSource(Protocol):
    """Named tensors that can be cut while they are read."""

    def get(self, name: str, *, rows: range | None = None, columns: range | None = None) -> Tensor:
        """Return the tensor, or only *rows* of its first axis, or only *columns* of its second."""


class _TensorCut(Protocol):
    """What safetensors calls a slice: a tensor of which only the wanted part is read."""

    def get_shape(self) -> list[int]: ...
    def __getitem__(self, part: slice | tuple[slice, slice]) -> Tensor: ...


class _TensorFile(Protocol):
    """The part of an open safetensors file that is used here; the package has no types of its own."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _TensorCut: ...
    def get_tensor(self, name: str) -> Tensor: ...


class SafetensorsFolder:
    """The tensors of a model folder, one file or several with an index; mapped, not copied."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = _files_by_tensor(folder)
        self._open = {name: _open(folder / name) for name in set(self._file_of.values())}

    def get(self, name: str, *, rows: range | None = None, columns: range | None = None) -> Tensor:
        if name not in self._file_of:
            raise ConfigError(f"{self._folder} has no tensor {name!r}; expected a model of the Llama family")
        file = self._open[self._file_of[name]]
        cut = file.get_slice(name)
        shape = cut.get_shape()
        if rows is not None and len(rows) < shape[0]:
            return cut[rows.start : rows.stop]
        if columns is not None and len(columns) < shape[1]:
            return cut[:, columns.start : columns.stop]
        return file.get_tensor(name)


def load_weights(source: TensorSource, config: ModelConfig, part: Part, dtype: torch.dtype) -> StageWeights:
    """Return the weights of *part* in *dtype*; whole tensors that have it already stay mapped to the file.

    Raises:
        ConfigError: a tensor is missing.

    Cost: reads this part's bytes once; those of whole tensors only when they are first used.
    """
    embedding = final_norm = head = None
    if part.first or (part.last and config.tied_embeddings):
        embedding = source.get("model.embed_tokens.weight").to(dtype)
    if part.last:
        final_norm = source.get("model.norm.weight").to(dtype)
        head = embedding if config.tied_embeddings else source.get("lm_head.weight").to(dtype)
    layers = tuple(_layer(source, config, part, layer, dtype) for layer in part.layers)
    return StageWeights(layers, embedding if part.first else None, final_norm, head)


def _layer(source: TensorSource, config: ModelConfig, part: Part, layer: int, dtype: torch.dtype) -> LayerWeights:
    heads, kv_heads = (
        range(heads.start * config.head_dim, heads.stop * config.head_dim) for heads in (part.heads, part.kv_heads)
    )

    def get(name: str, *, rows: range | None = None, columns: range | None = None) -> Tensor:
        tensor = source.get(f"model.layers.{layer}.{name}.weight", rows=rows, columns=columns)
        return tensor.to(dtype).contiguous()

    return LayerWeights(
        attention_norm=get("input_layernorm"),
        query=get("self_attn.q_proj", rows=heads),
        key=get("self_attn.k_proj", rows=kv_heads),
        value=get("self_attn.v_proj", rows=kv_heads),
        output=get("self_attn.o_proj", columns=heads),
        mlp_norm=get("post_attention_layernorm"),
        gate=get("mlp.gate_proj", rows=part.columns),
        up=get("mlp.up_proj", rows=part.columns),
        down=get("mlp.down_proj", columns=part.columns),
    )


def _files_by_tensor(folder: Path) -> dict[str, str]:
    index = folder / _INDEX_FILE
    if index.exists():
        try:
            return msgspec.convert(msgspec.json.decode(index.read_bytes())["weight_map"], dict[str, str])
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise ConfigError(f"{index} is not an index of tensors: {error}") from error
    if not (folder / _SINGLE_FILE).exists():
        raise ConfigError(f"{folder} has neither {_SINGLE_FILE} nor {_INDEX_FILE}")
    return dict.fromkeys(_open(folder / _SINGLE_FILE).keys(), _SINGLE_FILE)


def _open(path: Path) -> _TensorFile:
    """Return *path*, mapped.

    Raises:
        ConfigError: it is missing or no safetensors file.
    """
    try:
        return cast("_TensorFile", safe_open(path, framework="pt"))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
