"""Loading one rank's part of a model folder."""

from __future__ import annotations

from pathlib import Path

import torch

from hicache_storage.engine_integration.reference_engine.llama import LlamaStage, TensorSum
from hicache_storage.engine_integration.reference_engine.model_config import read_model_config
from hicache_storage.engine_integration.reference_engine.partition import part_of
from hicache_storage.engine_integration.reference_engine.weights import SafetensorsFolder, load_weights
from hicache_storage.layout import Topology

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_stage(
    folder: Path, dtype: str, topology: Topology, tp_rank: int, pp_rank: int, tensor_sum: TensorSum
) -> LlamaStage:
    """Return the rank's part of the model, ready to compute.

    Tensor-parallel ranks compute at the same time and share the cores; stages take turns, so each
    uses all of its share. Equal thread counts make equal sums on every stage.
    """
    torch.set_num_threads(max(1, torch.get_num_threads() // topology.tp))
    config = read_model_config(folder)
    part = part_of(config, topology, tp_rank=tp_rank, pp_rank=pp_rank)
    weights = load_weights(SafetensorsFolder(folder), config, part, DTYPES[dtype])
    return LlamaStage(config, part, weights, tensor_sum)
