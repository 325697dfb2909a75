"""The adapter's options, as they stand in ``--hicache-storage-backend-extra-config`` beside the engine's own keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache_storage.config import check_fields, from_mapping, option, parse_nbytes, resolve, whole_number
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Topology, Variant, canonical_dtype
from hicache_storage.registry import open_store
from hicache_storage.store import ObjectStore

ENGINE_KEYS = frozenset(
    {
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "allocator",
        "tp_lcm_size",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
    }
)
"""Keys of the extra config that SGLang reads itself, or took out before the adapter sees it."""

KEY_SCHEMES = ("unified", "rank-suffix")

_SOURCE = "--hicache-storage-backend-extra-config"
_MOST = 1 << 24


def _scheme(value: object) -> str:
    if value not in KEY_SCHEMES or not isinstance(value, str):
        raise ValueError(f"expected {' or '.join(KEY_SCHEMES)}")
    return value


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError("expected an object of options")  # noqa: TRY004 - resolve turns ValueError into ConfigError
    return {str(name): item for name, item in value.items()}


def _dtype(value: object) -> str:
    try:
        return canonical_dtype(str(value))
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _topologies(value: object) -> tuple[Topology, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words:
        raise ValueError("expected topologies, such as tp4pp2,tp2pp1")
    try:
        return tuple(word if isinstance(word, Topology) else Topology.parse(str(word)) for word in words)
    except ConfigError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """Where pages go and what they are called. The same on every rank."""

    backend: str = option(doc="the store: a registered name, a URL such as file:///mnt/kv, or module:Class")
    extra_config: Mapping[str, object] | None = option(None, doc="options of that store, by name", parse=_object)
    middleware: Mapping[str, object] | None = option(
        None, doc="layers around the store, as the extra config of any backend names them", parse=_object
    )
    key_scheme: str = option(
        "unified",
        doc="unified: any topology reads what any other wrote; rank-suffix: a deployment shares with its like alone",
        parse=_scheme,
    )
    topologies: tuple[Topology, ...] | None = option(
        None,
        doc="every deployment that shares the store, such as tp4pp2,tp2pp1: the grid is the coarsest that all can write",
        parse=_topologies,
        aliases=("fleet",),
    )
    layer_partition: int | None = option(
        None, doc="layers of an object, the same for all that share the store", parse=whole_number(1, _MOST)
    )
    head_partition: int | None = option(
        None, doc="KV heads of an object, the same for all that share the store", parse=whole_number(1, _MOST)
    )
    model_id: str | None = option(None, doc="the model's name in every key; by default the name that SGLang serves")
    weights_revision: str | None = option(None, doc="commit, hash or version of the weights")
    rope_scaling: str | None = option(None, doc="how positions are encoded, where deployments differ in it")
    quantization_scales: str | None = option(None, doc="format of the scales of a quantised KV cache")
    tokenizer: str | None = option(None, doc="variant of the tokenizer")
    multimodal: str | None = option(None, doc="variant of the multimodal preprocessor")
    draft_model_id: str | None = option(
        None, doc="name of the draft model in the keys of its KV; by default SGLang's --speculative-draft-model-path"
    )
    total_kv_heads: int | None = option(
        None, doc="KV heads of the model over all ranks, before any is replicated", parse=whole_number(1, _MOST)
    )
    num_layers: int | None = option(
        None, doc="layers of the model, all pipeline stages together", parse=whole_number(1, _MOST)
    )
    kv_dtype: str | None = option(
        None, doc="dtype of the KV cache, where SGLang keeps it as plain bytes (fp8_e4m3, fp8_e5m2)", parse=_dtype
    )
    read_only: bool = option(default=False, doc="never write; such a deployment need not fit the grid")
    scratch_nbytes: int = option(
        64 << 20, doc="memory for pages whose host layout has to be rearranged, for each direction", parse=parse_nbytes
    )

    def __post_init__(self) -> None:
        check_fields(self, "sglang")
        fixed = self.topologies or self.layer_partition or self.head_partition
        if self.key_scheme == "rank-suffix" and fixed:
            raise ConfigError(
                "key_scheme = 'rank-suffix' stores whole shards; topologies, layer_partition and head_partition "
                "are for 'unified'"
            )

    @property
    def variant(self) -> Variant:
        """What the options say of the model beside its name."""
        return Variant(
            weights_revision=self.weights_revision,
            rope_scaling=self.rope_scaling,
            quantization_scales=self.quantization_scales,
            tokenizer=self.tokenizer,
            multimodal=self.multimodal,
        )

    def open(self) -> ObjectStore:
        """Return the open store; the caller closes it. Raises as `registry.open_store` does."""
        settings = dict(self.extra_config or {})
        if self.middleware is not None:
            if "middleware" in settings:
                raise ConfigError("sglang option middleware is given twice: beside extra_config and in it")
            settings["middleware"] = self.middleware
        return open_store(self.backend, settings)


def read_options(extra_config: Mapping[str, object] | None) -> AdapterOptions:
    """Return the adapter's options from SGLang's extra config; the engine's own keys are left to it.

    Raises:
        ConfigError: an unknown key, a value that does not fit, or no ``backend``.
    """
    own = {name: value for name, value in (extra_config or {}).items() if name not in ENGINE_KEYS}
    options, _ = resolve(AdapterOptions, "sglang", [from_mapping(own, _SOURCE)])
    return options
