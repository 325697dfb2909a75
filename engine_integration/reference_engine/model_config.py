"""The shape of a decoder, read from the `config.json` of a model folder. Free of torch.

Two families: Llama, with grouped-query attention, and DeepSeek-V3's latent attention with dense MLPs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from hicache_storage.errors import ConfigError
from hicache_storage.layout import KVShape

_LATENT_ARCHITECTURE = "DeepseekV3ForCausalLM"
_ARCHITECTURES = ("LlamaForCausalLM", _LATENT_ARCHITECTURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """How Llama 3.1 stretches low RoPE frequencies for contexts beyond *original_tokens*."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Sizes of latent attention (MLA): a token's cached row is ``[kv_rank | rope_dim]``, the same for every head.

    Attributes:
        kv_rank: width of the compressed row that K and V are made from.
        query_rank: width that queries are compressed to; None for queries that are not.
        nope_dim: part of a head's query and key without positions.
        rope_dim: part with positions.
        value_dim: width of a head's value.
    """

    kv_rank: int
    query_rank: int | None
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def row_dim(self) -> int:
        """Elements of a token's cached row."""
        return self.kv_rank + self.rope_dim

    @property
    def query_dim(self) -> int:
        """Elements of one head's query."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of one model.

    Attributes:
        hidden_size: width of the residual stream.
        mlp_size: inner width of the MLP.
        num_heads: query heads; `num_kv_heads` divides it.
        tied_embeddings: the output head is the embedding table.
        eos_token_ids: any of them ends a text.
        latent: sizes of latent attention; None for grouped-query attention.
    """

    num_layers: int
    hidden_size: int
    mlp_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_tokens: int
    norm_epsilon: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]
    latent: LatentShape | None = None

    @property
    def rope_dim(self) -> int:
        """Elements of a head's query and key that positions turn."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    def kv_shape(self, *, dtype: str, page_tokens: int) -> KVShape:
        """Return the shape of this model's KV."""
        if self.latent is not None:
            return KVShape.mla(
                num_layers=self.num_layers, latent_dim=self.latent.row_dim, dtype=dtype, page_tokens=page_tokens
            )
        return KVShape.mha(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
            page_tokens=page_tokens,
        )


class _RopeJson(msgspec.Struct, frozen=True, kw_only=True):
    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None


class _ConfigJson(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `config.json` that this engine reads; newer files group the RoPE settings, older ones spread them."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    architectures: list[str] | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: _RopeJson | None = None
    rope_parameters: _RopeJson | None = None
    tie_word_embeddings: bool = False
    eos_token_id: int | list[int] | None = None
    kv_lora_rank: int | None = None
    q_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    first_k_dense_replace: int | None = None
    rope_interleave: bool = True


def read_model_config(folder: Path) -> ModelConfig:
    """Return the model's shape as `config.json` in *folder* gives it.

    Raises:
        ConfigError: the file is missing, is not that of a Llama-family model, or uses a feature
            that this engine does not compute.
    """
    path = folder / "config.json"
    try:
        return parse_model_config(path.read_bytes(), path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; expected a model folder") from error


def parse_model_config(data: bytes, path: Path) -> ModelConfig:
    """Return the model's shape as *data*, the content of a `config.json`, gives it.

    Args:
        path: where *data* comes from, for messages.

    Raises:
        ConfigError: as `read_model_config`.
    """
    try:
        found = msgspec.json.decode(data, type=_ConfigJson)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} does not describe a model: {error}") from error
    _refuse_unknown_features(found, path)
    rope = found.rope_parameters or found.rope_scaling or _RopeJson()
    eos = found.eos_token_id if isinstance(found.eos_token_id, list) else [found.eos_token_id]
    return ModelConfig(
        num_layers=found.num_hidden_layers,
        hidden_size=found.hidden_size,
        mlp_size=found.intermediate_size,
        num_heads=found.num_attention_heads,
        num_kv_heads=found.num_key_value_heads or found.num_attention_heads,
        head_dim=found.head_dim or found.hidden_size // found.num_attention_heads,
        vocab_size=found.vocab_size,
        max_tokens=found.max_position_embeddings,
        norm_epsilon=found.rms_norm_eps,
        rope_theta=rope.rope_theta or found.rope_theta,
        rope_scaling=_rope_scaling(rope, path),
        tied_embeddings=found.tie_word_embeddings,
        eos_token_ids=tuple(token for token in eos if token is not None),
        latent=_latent(found, path) if _LATENT_ARCHITECTURE in (found.architectures or ()) else None,
    )


def _latent(found: _ConfigJson, path: Path) -> LatentShape:
    dims = (found.kv_lora_rank, found.qk_nope_head_dim, found.qk_rope_head_dim, found.v_head_dim)
    kv_rank, nope, rope, value = dims
    if kv_rank is None or nope is None or rope is None or value is None:
        raise ConfigError(f"{path}: latent attention needs kv_lora_rank, both qk head dims and v_head_dim, got {dims}")
    if found.first_k_dense_replace is None or found.first_k_dense_replace < found.num_hidden_layers:
        raise ConfigError(
            f"{path}: first_k_dense_replace = {found.first_k_dense_replace} of {found.num_hidden_layers} layers: "
            "this engine computes dense MLPs, no experts"
        )
    if not found.rope_interleave:
        raise ConfigError(f"{path}: rope_interleave = false is not computed")
    return LatentShape(kv_rank=kv_rank, query_rank=found.q_lora_rank, nope_dim=nope, rope_dim=rope, value_dim=value)


def _refuse_unknown_features(found: _ConfigJson, path: Path) -> None:
    if not set(found.architectures or ()) & set(_ARCHITECTURES):
        raise ConfigError(f"{path}: architectures {found.architectures} are not among {list(_ARCHITECTURES)}")
    if found.hidden_act != "silu":
        raise ConfigError(f"{path}: hidden_act {found.hidden_act!r} is not 'silu'")
    for name, value in (("attention_bias", found.attention_bias), ("mlp_bias", found.mlp_bias)):
        if value:
            raise ConfigError(f"{path}: {name} = true: this engine computes no biases")


def _rope_scaling(rope: _RopeJson, path: Path) -> Llama3Scaling | None:
    kind = rope.rope_type or rope.type or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(f"{path}: RoPE scaling {kind!r} is not supported; 'default' and 'llama3' are")
    factor, low, high = rope.factor, rope.low_freq_factor, rope.high_freq_factor
    tokens = rope.original_max_position_embeddings
    if factor is None or low is None or high is None or tokens is None:
        raise ConfigError(f"{path}: RoPE scaling 'llama3' needs factor, both frequency factors and the original length")
    return Llama3Scaling(factor=factor, low_freq_factor=low, high_freq_factor=high, original_tokens=tokens)
