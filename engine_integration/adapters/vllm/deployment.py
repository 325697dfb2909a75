"""What vLLM's configuration says about its KV, checked: what is not known to be right is refused with a reason."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
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
from hicache_storage.engine_integration.adapters.vllm.row_place import RowPlace, measure_latent, measure_places
from hicache_storage.errors import ConfigError
from hicache_storage.layout import KVShape, ShardLayout, Topology, Variant, canonical_dtype

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_KV_DTYPES = {"auto", "half", "float16", "bfloat16", "float", "float32", "fp8", "fp8_e4m3", "fp8_e5m2"}
_DRAFTS_WITHOUT_KV = {"ngram", "ngram_gpu", "suffix"}

_log = logging.getLogger(__name__)


def read_deployment(config: VllmConfig, kv: KVCacheConfig, options: VllmOptions) -> Deployment:
    """Return what this process's configuration says.

    Raises:
        ConfigError: something that the adapter does not support, with the option that turns it off.
    """
    _check_parallel(config)
    _check_model(config.model_config)
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
    if config.kv_transfer_config.kv_role != "kv_both":
        raise ConfigError(
            f"kv_role is {config.kv_transfer_config.kv_role!r}: this connector has no sender and no receiver; write "
            '"kv_role": "kv_both", and "read_only": true in kv_connector_extra_config to store nothing'
        )
    if config.kv_transfer_config.kv_load_failure_policy != "recompute":
        raise ConfigError(
            "kv_load_failure_policy is 'fail': a page that the store loses would fail the request; "
            'write "kv_load_failure_policy": "recompute" in --kv-transfer-config'
        )


def _check_model(model: ModelConfig) -> None:
    if model.is_diffusion:
        raise ConfigError(
            "this model goes over its last tokens again and again: this connector serves those that do not"
        )
    if not model.is_prefix_caching_supported:
        raise ConfigError(
            "vLLM cannot begin with a prefix of this model that was computed before, because it pools or attends over "
            "all tokens: there is nothing to restore"
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
    revision = options.weights_revision or _revision(model, config.load_config.load_format)
    if revision is None:
        _log.warning(
            "vllm.weights_unknown model=%s: the version of its weights cannot be found out, so other weights under this "
            "name would share its KV; set weights_revision",
            model.model,
        )
    return Variant(
        weights_revision=revision,
        rope_scaling=_positions(model),
        quantization_scales="per_tensor" if config.cache_config.cache_dtype.startswith("fp8") else None,
    )


def _revision(model: ModelConfig, load_format: str) -> str | None:
    """Return the version of the weights as far as it can be known, with what vLLM does to them when it loads them."""
    folder = Path(model.model)
    known = [
        fingerprint(folder) if folder.is_dir() else _commit(model.model, model.revision),
        f"config-{model.hf_config_path}" if model.hf_config_path else None,
        model.quantization,
        f"dummy-{model.seed}" if load_format == "dummy" else None,
    ]
    return "+".join(part for part in known if part) or None


def _commit(name: str, revision: str | None) -> str | None:
    """Return the commit that a branch of a model on the hub was at when its config was fetched; else *revision*."""
    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        found = None
    return Path(found).parent.name if isinstance(found, str) else revision


def _positions(model: ModelConfig) -> str | None:
    """Return what the operator says about the model's settings, and what vLLM makes of its length."""
    overrides = model.hf_overrides
    if callable(overrides):
        raise ConfigError(
            "hf_overrides is a function, so other deployments cannot know what it changes; give an object"
        )
    known = [json.dumps(overrides, sort_keys=True, separators=(",", ":")) if overrides else None]
    rope = getattr(model.hf_text_config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # vLLM has two sets of factors for such a model, and takes one for all requests.
        is_long = model.max_model_len > rope["original_max_position_embeddings"]
        known.append("longrope-long" if is_long else "longrope-short")
    return "+".join(part for part in known if part) or None


def _measured(
    config: VllmConfig, names: Sequence[str], kernel_blocks: Tensor, blocks: Tensor, layout: ShardLayout
) -> tuple[RowPlace, RowPlace | None]:
    """Return where the rows lie in a block of the first layer, as its attention backend writes them; no V for MLA."""
    attention = get_layers_from_vllm_config(config, AttentionLayerBase, list(names))
    kinds = {type(attention[name].impl).__name__ for name in names}
    if len(kinds) != 1:
        raise ConfigError(f"the layers have different attention backends: {', '.join(sorted(kinds))}")
    layer, shape, tokens = attention[names[0]], layout.shape, config.cache_config.block_size
    slots = torch.arange(tokens, 2 * tokens, device=kernel_blocks.device)

    def rows(part: Tensor) -> Tensor:
        return part.to(kernel_blocks.device, config.model_config.dtype)

    def write(keys: Tensor, values: Tensor) -> Tensor:
        scratch = _Scratch(kernel_blocks, blocks)
        layer.impl.do_kv_cache_update(layer, rows(keys), rows(values), scratch.blocks, slots)
        return scratch.second(shape.dtype)

    def write_latent(latent: Tensor) -> Tensor:
        scratch = _Scratch(kernel_blocks, blocks)
        content, position = rows(latent[:, : layer.kv_lora_rank]), rows(latent[:, layer.kv_lora_rank :])
        scale = layer._k_scale  # noqa: SLF001 - what vLLM's own layer passes
        layer.impl.do_kv_cache_update(
            content, position.unsqueeze(1), scratch.blocks.squeeze(1), slots, layer.kv_cache_dtype, scale
        )
        return scratch.second(shape.dtype)

    if shape.is_mla:
        return measure_latent(write_latent, tokens, shape.head_dim), None
    if shape.head_dim != shape.v_head_dim:
        raise ConfigError(
            f"K rows of {shape.head_dim} and V rows of {shape.v_head_dim} elements: this connector serves equal ones"
        )
    return measure_places(write, tokens, len(layout.shard.heads), shape.head_dim)


class _Scratch:
    """Two blocks of zeros, laid out as a layer's.

    Args:
        kernel_blocks: the layer as its attention backend sees it.
        blocks: the same memory by vLLM's blocks.
    """

    def __init__(self, kernel_blocks: Tensor, blocks: Tensor) -> None:
        self._block_nelem = blocks.stride(0)
        per_block = kernel_blocks.shape[0] // blocks.shape[0]
        self._memory = kernel_blocks.new_zeros(2 * self._block_nelem)
        self.blocks = self._memory.as_strided((2 * per_block, *kernel_blocks.shape[1:]), kernel_blocks.stride())

    def second(self, dtype: str) -> Tensor:
        """Return the memory of the second block as flat float32. Some backends keep fp8 in plain bytes."""
        memory = self._memory[self._block_nelem :]
        return (memory.view(getattr(torch, dtype)) if memory.dtype is torch.uint8 else memory).float().cpu()
