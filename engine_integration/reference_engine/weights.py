"""One rank's weights, taken out of a safetensors folder without reading the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hicache_storage.engine_integration.reference_engine.model_config import LatentShape, ModelConfig
from hicache_storage.engine_integration.reference_engine.partition import Part
from hicache_storage.errors import ConfigError, InvariantError

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonWeights:
    """What every decoder layer has; matrices are `[out, in]`, cut to the rank's heads and columns."""

    attention_norm: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights(CommonWeights):
    """One decoder layer with grouped-query attention."""

    query: Tensor
    key: Tensor
    value: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentLayerWeights(CommonWeights):
    """One decoder layer with latent attention; see `LatentShape`.

    Attributes:
        query_down, query_norm: compress queries; None where queries are not compressed.
        query: `[heads * query_dim, query_rank or hidden]`.
        kv_down: makes a token's row, `[row_dim, hidden]`.
        key_up: makes keys of compressed rows, `[heads, nope_dim, kv_rank]`.
        value_up: makes values of compressed rows, `[heads, value_dim, kv_rank]`.
    """

    query_down: Tensor | None
    query_norm: Tensor | None
    query: Tensor
    kv_down: Tensor
    kv_norm: Tensor
    key_up: Tensor
    value_up: Tensor


LayerT = TypeVar("LayerT", bound=CommonWeights)


@dataclass(frozen=True, slots=True)
class StageWeights(Generic[LayerT]):
    """What one rank computes with; the ends of the pipeline hold the tables the others lack."""

    layers: tuple[LayerT, ...]
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


class TensorTable:
    """Named tensors that are in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def get(self, name: str, *, rows: range | None = None, columns: range | None = None) -> Tensor:
        tensor = self._tensors[name]
        if rows is not None:
            return tensor[rows.start : rows.stop]
        return tensor if columns is None else tensor[:, columns.start : columns.stop]


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


class Loader:
    """Takes what one rank needs out of a source, in one dtype and on one device.

    Cost: reads the rank's bytes once; whole tensors that have the dtype already stay mapped to the file.
    """

    def __init__(self, source: TensorSource, part: Part, dtype: torch.dtype, device: str = "cpu") -> None:
        self.part = part
        self._source = source
        self._dtype = dtype
        self._device = device

    def whole(self, name: str) -> Tensor:
        """Return a tensor of the model by its name in the file, without ``.weight``.

        Raises:
            ConfigError: there is none.
        """
        return self._source.get(f"{name}.weight").to(self._device, self._dtype)

    def of_layer(self, layer: int, name: str, *, rows: range | None = None, columns: range | None = None) -> Tensor:
        """Return a layer's tensor, or a cut of it."""
        tensor = self._source.get(f"model.layers.{layer}.{name}.weight", rows=rows, columns=columns)
        return tensor.to(self._device, self._dtype).contiguous()


def load_weights(
    source: TensorSource, config: ModelConfig, part: Part, dtype: torch.dtype, device: str = "cpu"
) -> StageWeights[LayerWeights]:
    """Return the weights of *part* of a model with grouped-query attention.

    Raises:
        ConfigError: a tensor is missing.
    """
    loader = Loader(source, part, dtype, device)
    return _with_ends(loader, config, tuple(_layer(loader, config, layer) for layer in part.layers))


def load_latent_weights(
    source: TensorSource, config: ModelConfig, part: Part, dtype: torch.dtype, device: str = "cpu"
) -> StageWeights[LatentLayerWeights]:
    """Return the weights of *part* of a model with latent attention. Raises as `load_weights` does."""
    loader = Loader(source, part, dtype, device)
    return _with_ends(loader, config, tuple(_latent_layer(loader, config, layer) for layer in part.layers))


def _with_ends(loader: Loader, config: ModelConfig, layers: tuple[LayerT, ...]) -> StageWeights[LayerT]:
    part = loader.part
    embedding = final_norm = head = None
    if part.first or (part.last and config.tied_embeddings):
        embedding = loader.whole("model.embed_tokens")
    if part.last:
        final_norm = loader.whole("model.norm")
        head = embedding if config.tied_embeddings else loader.whole("lm_head")
    return StageWeights(layers, embedding if part.first else None, final_norm, head)


def _layer(loader: Loader, config: ModelConfig, layer: int) -> LayerWeights:
    part = loader.part
    heads, kv_heads = _rows(part.heads, config.head_dim), _rows(part.kv_heads, config.head_dim)
    return LayerWeights(
        attention_norm=loader.of_layer(layer, "input_layernorm"),
        query=loader.of_layer(layer, "self_attn.q_proj", rows=heads),
        key=loader.of_layer(layer, "self_attn.k_proj", rows=kv_heads),
        value=loader.of_layer(layer, "self_attn.v_proj", rows=kv_heads),
        output=loader.of_layer(layer, "self_attn.o_proj", columns=heads),
        mlp_norm=loader.of_layer(layer, "post_attention_layernorm"),
        gate=loader.of_layer(layer, "mlp.gate_proj", rows=part.columns),
        up=loader.of_layer(layer, "mlp.up_proj", rows=part.columns),
        down=loader.of_layer(layer, "mlp.down_proj", columns=part.columns),
    )


def _latent_layer(loader: Loader, config: ModelConfig, layer: int) -> LatentLayerWeights:
    part, latent = loader.part, latent_of(config)
    queries = _rows(part.heads, latent.query_dim)
    is_compressed = latent.query_rank is not None
    query = "self_attn.q_b_proj" if is_compressed else "self_attn.q_proj"
    key_value = loader.of_layer(
        layer, "self_attn.kv_b_proj", rows=_rows(part.heads, latent.nope_dim + latent.value_dim)
    ).view(len(part.heads), -1, latent.kv_rank)
    return LatentLayerWeights(
        attention_norm=loader.of_layer(layer, "input_layernorm"),
        query_down=loader.of_layer(layer, "self_attn.q_a_proj") if is_compressed else None,
        query_norm=loader.of_layer(layer, "self_attn.q_a_layernorm") if is_compressed else None,
        query=loader.of_layer(layer, query, rows=queries),
        kv_down=loader.of_layer(layer, "self_attn.kv_a_proj_with_mqa"),
        kv_norm=loader.of_layer(layer, "self_attn.kv_a_layernorm"),
        key_up=key_value[:, : latent.nope_dim].contiguous(),
        value_up=key_value[:, latent.nope_dim :].contiguous(),
        output=loader.of_layer(layer, "self_attn.o_proj", columns=_rows(part.heads, latent.value_dim)),
        mlp_norm=loader.of_layer(layer, "post_attention_layernorm"),
        gate=loader.of_layer(layer, "mlp.gate_proj", rows=part.columns),
        up=loader.of_layer(layer, "mlp.up_proj", rows=part.columns),
        down=loader.of_layer(layer, "mlp.down_proj", columns=part.columns),
    )


def latent_of(config: ModelConfig) -> LatentShape:
    """Return the sizes of latent attention of a model that has it."""
    if config.latent is None:
        raise InvariantError("this model has grouped-query attention, no latent one")
    return config.latent


def _rows(heads: range, head_rows: int) -> range:
    return range(heads.start * head_rows, heads.stop * head_rows)


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
