"""One rank's part of a configured model, and the pool it computes in."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import torch

from hicache_storage.engine_integration.reference_engine.decoder import TensorSum
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.latent import LatentStage
from hicache_storage.engine_integration.reference_engine.llama import LlamaStage
from hicache_storage.engine_integration.reference_engine.partition import part_of
from hicache_storage.engine_integration.reference_engine.random_model import random_tensors
from hicache_storage.engine_integration.reference_engine.sizes import model_config
from hicache_storage.engine_integration.reference_engine.weights import (
    SafetensorsFolder,
    TensorSource,
    TensorTable,
    load_latent_weights,
    load_weights,
)
from hicache_storage.errors import ConfigError
from hicache_storage.layout import canonical_dtype

Stage: TypeAlias = LlamaStage | LatentStage

_COMPUTE = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_KEEP = _COMPUTE | {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


def kv_dtype(config: EngineConfig) -> torch.dtype:
    """Return the dtype of the KV pools.

    Raises:
        ConfigError: KV cannot be kept in it.
    """
    return _dtype(config.kv_dtype or config.dtype, _KEEP, "kv_dtype")


def load_stage(config: EngineConfig, tensor_sum: TensorSum, *, tp_rank: int, pp_rank: int) -> Stage:
    """Return the rank's part of the configured model, ready to compute.

    Raises:
        ConfigError: the model is none that this engine computes, or the topology cannot split it.
        LayoutError: the topology cannot split its KV.
    """
    model = model_config(config)
    part = part_of(model, config.ranks, tp_rank=tp_rank, pp_rank=pp_rank)
    dtype = _dtype(config.dtype, _COMPUTE, "dtype")
    source = _tensors(config)
    if model.latent is not None:
        weights = load_latent_weights(source, model, part, dtype, config.device)
        return LatentStage(model, part, weights, tensor_sum)
    return LlamaStage(model, part, load_weights(source, model, part, dtype, config.device), tensor_sum)


def _tensors(config: EngineConfig) -> TensorSource:
    if config.random is not None:
        return TensorTable(random_tensors(config.random, seed=config.seed))
    return SafetensorsFolder(Path(config.model or ""))


def _dtype(name: str, known: dict[str, torch.dtype], what: str) -> torch.dtype:
    found = known.get(canonical_dtype(name))
    if found is None:
        raise ConfigError(f"{what} = {name!r}: this engine knows {', '.join(known)}")
    return found
