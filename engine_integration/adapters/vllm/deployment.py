"""What vLLM's configuration says about its KV, checked: what is not known to be right is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from vllm.config import get_layers_from_vllm_config
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, group_kernel_blocks

from hicache_storage.engine_integration.adapters.vllm.blocks import EngineBlocks
from hicache_storage.engine_integration.adapters.vllm.fingerprint import fingerprint
from hicache_storage.engine_integration.adapters.vllm.options import VllmOptions
from hicache_storage.engine_integration.adapters.vllm.role import Deployment
from hicache_storage.engine_integration.adapters.vllm.row_place import RowPlace, latent_place, measure_places
from hicache_storage.errors import ConfigError
from hicache_storage.layout import KVShape, ShardLayout, Topology, Variant, canonical_dtype

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_KV_DTYPES = {"auto", "half", "float16", "bfloat16", "float", "float32", "fp8", "fp8_e4m3", "fp8_e5m2"}
_DRAFTS_WITHOUT_KV = {"ngram", "ngram_gpu", "suffix"}


def read_deployment(config: VllmConfig, kv: KVCacheConfig, options: VllmOptions) -> Deployment:
    """Return what this process's configuration says.

    Raises:
        ConfigError: something that the adapter does not support, with the option that turns it off.
    """
    _check_parallel(config)
    spec = _only_spec(kv)
    model, parallel = config.model_config, config.parallel_config
    stages = parallel.pipeline_parallel_size
    num_layers = model.get_total_num_hidden_layers()
    borders = [get_pp_indices(num_layers, rank, stages) for rank in range(stages)]
    tp = parallel.tensor_parallel_size
    topology = Topology(tp, stages, tuple(stop - start for start, stop in borders) if stages > 1 else None)
    return Deployment(
        model_id=model.model,
        variant=_variant(config, options),
        shape=_shape(config, spec, num_layers),
        topology=topology,
        tp_rank=parallel.rank % tp,
        pp_rank=parallel.rank // tp % stages,
    )


def engine_blocks(
    config: VllmConfig, kv: KVCacheConfig, kv_caches: dict[str, Tensor], layout: ShardLayout
) -> EngineBlocks:
    """Return this worker's KV blocks, their format measured with the engine's own code.

    Args:
        kv_caches: per layer name, as vLLM registers them.

    Raises:
        ConfigError: the layers are not those of this stage.
        LayoutError: the blocks are laid out in a way that no strides describe.
    """
    names = sorted(kv_caches, key=extract_layer_index)
    if [extract_layer_index(name) for name in names] != list(layout.shard.layers):
        start, stop = layout.shard.layers.start, layout.shard.layers.stop
        raise ConfigError(
            f"vLLM registers the KV of {', '.join(names)}: expected one for each layer of [{start}, {stop})"
        )
    tensors = [kv_caches[name] for name in names]
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            raise ConfigError(f"vLLM keeps the KV of {name} in {type(tensor).__name__}: expected one tensor")
    layers = [group_kernel_blocks(tensor, kv.num_blocks) for tensor in tensors]
    if layout.shape.is_mla:
        return EngineBlocks(layers, latent_place(tensors[0], layout.shape.head_dim), None, layout)
    keys, values = _measured(config, names, tensors[0], layers[0], layout)
    return EngineBlocks(layers, keys, values, layout)


def _check_parallel(config: VllmConfig) -> None:
    parallel, speculative = config.parallel_config, config.speculative_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name) != 1:
            raise ConfigError(
                f"{name} = {getattr(parallel, name)}: this connector serves tensor and pipeline parallel only"
            )
    if speculative is not None and speculative.method not in _DRAFTS_WITHOUT_KV:
        raise ConfigError(
            f"speculative method {speculative.method!r} has KV of its own, which this connector does not keep; "
            f"it serves {', '.join(sorted(_DRAFTS_WITHOUT_KV))}"
        )
    if config.kv_transfer_config.kv_load_failure_policy != "recompute":
        raise ConfigError(
            "kv_load_failure_policy is 'fail': a page that the store loses would fail the request; "
            'write "kv_load_failure_policy": "recompute" in --kv-transfer-config'
        )


def _only_spec(kv: KVCacheConfig) -> FullAttentionSpec:
    if len(kv.kv_cache_groups) != 1:
        raise ConfigError(
            f"this model's KV is in {len(kv.kv_cache_groups)} groups: this connector serves models with one"
        )
    spec = kv.kv_cache_groups[0].kv_cache_spec
    if type(spec) not in (FullAttentionSpec, MLAAttentionSpec):
        raise ConfigError(f"this model's KV is of {type(spec).__name__}: this connector serves full attention and MLA")
    if spec.tokens_per_state != 1 or spec.num_head_slots is not None or spec.state_content_bytes is not None:
        raise ConfigError(
            "this attention backend packs its KV in a format of its own; choose another --attention-backend"
        )
    return spec


def _shape(config: VllmConfig, spec: FullAttentionSpec, num_layers: int) -> KVShape:
    model, chosen = config.model_config, config.cache_config.cache_dtype
    if chosen not in _KV_DTYPES:
        raise ConfigError(f"--kv-cache-dtype {chosen}: this connector serves {', '.join(sorted(_KV_DTYPES))}")
    dtype = canonical_dtype(str(model.dtype) if chosen == "auto" else chosen)
    tp = config.parallel_config.tensor_parallel_size
    if isinstance(spec, MLAAttentionSpec):
        shape = KVShape.mla(num_layers=num_layers, latent_dim=spec.head_size, dtype=dtype, page_tokens=spec.block_size)
    else:
        heads = model.get_total_num_kv_heads()
        if spec.num_kv_heads != max(1, heads // tp):
            raise ConfigError(
                f"{spec.num_kv_heads} of {heads} KV heads on a rank of {tp}: expected {max(1, heads // tp)}"
            )
        shape = KVShape.mha(
            num_layers=num_layers,
            num_kv_heads=heads,
            head_dim=spec.head_size,
            v_head_dim=spec.head_size_v,
            dtype=dtype,
            page_tokens=spec.block_size,
        )
    if shape.item_nbytes != spec.dtype.itemsize:
        raise ConfigError(f"vLLM keeps {dtype} KV in elements of {spec.dtype}, which have another width")
    return shape


def _variant(config: VllmConfig, options: VllmOptions) -> Variant:
    model = config.model_config
    overrides = model.hf_overrides
    if callable(overrides):
        raise ConfigError(
            "hf_overrides is a function, so other deployments cannot know what it changes; give an object"
        )
    return Variant(
        weights_revision=options.weights_revision or _revision(model, config.load_config.load_format),
        rope_scaling=json.dumps(overrides, sort_keys=True, separators=(",", ":")) if overrides else None,
        quantization_scales="per_tensor" if config.cache_config.cache_dtype.startswith("fp8") else None,
    )


def _revision(model: ModelConfig, load_format: str) -> str | None:
    """Return the version of the weights as far as it can be known, with what vLLM does to them when it loads them."""
    folder = Path(model.model)
    known = [
        model.revision,
        fingerprint(folder) if folder.is_dir() else None,
        model.quantization,
        f"dummy-{model.seed}" if load_format == "dummy" else None,
    ]
    return "+".join(part for part in known if part) or None


def _measured(
    config: VllmConfig, names: Sequence[str], kernel_blocks: Tensor, blocks: Tensor, layout: ShardLayout
) -> tuple[RowPlace, RowPlace]:
    """Return where the rows lie in a block of the first layer, as its attention backend writes them."""
    attention = get_layers_from_vllm_config(config, AttentionLayerBase, list(names))
    kinds = {type(attention[name].impl).__name__ for name in names}
    if len(kinds) != 1:
        raise ConfigError(f"the layers have different attention backends: {', '.join(sorted(kinds))}")
    layer = attention[names[0]]
    per_block = kernel_blocks.shape[0] // blocks.shape[0]
    block_nelem = blocks.stride(0)
    tokens = config.cache_config.block_size
    heads, head_dim, v_head_dim = len(layout.shard.heads), layout.shape.head_dim, layout.shape.v_head_dim
    if head_dim != v_head_dim:
        raise ConfigError(f"K rows of {head_dim} and V rows of {v_head_dim} elements: this connector serves equal ones")

    def write(keys: Tensor, values: Tensor) -> Tensor:
        memory = kernel_blocks.new_zeros(2 * block_nelem)
        scratch = memory.as_strided((2 * per_block, *kernel_blocks.shape[1:]), kernel_blocks.stride())
        slots = torch.arange(tokens, 2 * tokens, device=memory.device)
        rows = [part.to(memory.device, config.model_config.dtype) for part in (keys, values)]
        layer.impl.do_kv_cache_update(layer, *rows, scratch, slots)
        return _as_values(memory[block_nelem:], layout.shape.dtype).float().cpu()

    return measure_places(write, tokens, heads, head_dim)


def _as_values(memory: Tensor, dtype: str) -> Tensor:
    """Return KV memory as what it means: some backends keep fp8 in plain bytes."""
    return memory.view(getattr(torch, dtype)) if memory.dtype is torch.uint8 else memory
