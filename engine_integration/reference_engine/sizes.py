"""What can be said of a configured engine before anything is loaded. Free of torch."""

from __future__ import annotations

from pathlib import Path

from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.model_config import (
    ModelConfig,
    parse_model_config,
    read_model_config,
)
from hicache_storage.engine_integration.reference_engine.partition import part_of
from hicache_storage.engine_integration.reference_engine.random_shape import config_json
from hicache_storage.engine_integration.reference_engine.store_parts import store_role
from hicache_storage.layout import KVShape


def model_config(config: EngineConfig) -> ModelConfig:
    """Return the sizes of the configured model.

    Raises:
        ConfigError: there is no such model, or none that this engine computes.
    """
    if config.random is not None:
        return parse_model_config(config_json(config.random), Path("random model"))
    return read_model_config(Path(config.model or ""))


def kv_shape(config: EngineConfig) -> KVShape:
    """Return the shape of the whole model's KV as it is kept. Raises as `model_config` does."""
    dtype = config.kv_dtype or config.dtype
    return model_config(config).kv_shape(dtype=dtype, page_tokens=config.page_tokens)


def check_config(config: EngineConfig) -> None:
    """Raise what would keep a rank from starting, as far as it can be told from the config and the model's sizes.

    Raises:
        ConfigError: there is no such model, or the topology cannot split it.
        LayoutError: the topology cannot split its KV, or the grid does not fit it.
    """
    model, shape = model_config(config), kv_shape(config)
    for tp_rank, pp_rank in config.ranks.ranks():
        part_of(model, config.ranks, tp_rank=tp_rank, pp_rank=pp_rank)
        store_role(config, shape, tp_rank=tp_rank, pp_rank=pp_rank)
