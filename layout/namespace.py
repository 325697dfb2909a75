"""What makes stored KV interchangeable: every field that changes the meaning of the bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Self

import msgspec

from hicache_storage.errors import ConfigError
from hicache_storage.layout.geometry import KVShape, canonical_dtype
from hicache_storage.layout.grid import Grid

OBJECT_LAYOUT = "page-unified-v1"
SCHEMA_VERSION = 1
_MAX_FIELD_NBYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What can differ between two deployments that name the same model. A field that is None is not known to differ.

    A field changes the digest when it is set and leaves it as it is when it is None.

    Attributes:
        weights_revision: commit, hash or version of the weights.
        rope_scaling: how positions are encoded.
        quantization_scales: format of the scales of a quantised KV cache.
        component: None for the target model's KV; ``draft``, ``indexer``, ``swa``, ``recurrent`` for companions.
        tokenizer: variant of the tokenizer, where it changes what a token id means.
        multimodal: variant of the multimodal preprocessor.
    """

    weights_revision: str | None = None
    rope_scaling: str | None = None
    quantization_scales: str | None = None
    component: str | None = None
    tokenizer: str | None = None
    multimodal: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.set_fields().items():
            _check_text(name, value)

    def set_fields(self) -> dict[str, str]:
        """Return the fields that are set, in the order of their declaration."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """The identity of a set of objects that may be read in place of each other.

    Without a variant the digest is that of SGLang 0.5.23's library code, so that pages can be
    shared with an engine that uses it.

    Attributes:
        model_id: the model, as the operator names it everywhere.
        dtype: logical KV dtype; ``float8_e4m3fn`` and ``float8_e5m2`` differ although both are one byte.
        page_size: tokens of a page.
        rank_replicated: every TP rank holds the same rows (MLA).
        total_kv_heads: KV heads over all TP ranks; 0 for MLA.
        layer_partition: layers of a chunk.
        head_partition: KV heads of a chunk; 0 for MLA.
        object_layout: name of the byte order within an object.
        variant: everything else that makes KV of this model differ.
    """

    model_id: str
    dtype: str
    page_size: int
    rank_replicated: bool
    total_kv_heads: int
    layer_partition: int
    head_partition: int
    object_layout: str = OBJECT_LAYOUT
    variant: Variant = Variant()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", canonical_dtype(self.dtype))
        _check_text("model_id", self.model_id)
        _check_text("object_layout", self.object_layout)
        for name in ("page_size", "total_kv_heads", "layer_partition", "head_partition"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"namespace field {name} = {value!r}: expected an integer >= 0")

    @classmethod
    def of(cls, *, model_id: str, shape: KVShape, grid: Grid, variant: Variant | None = None) -> Self:
        """Return the namespace of a model of *shape* whose objects lie on *grid*.

        Raises:
            ConfigError: the model id is empty, too long or not UTF-8.
            LayoutError: the grid does not fit the model.
        """
        grid.check(shape)
        return cls(
            model_id=model_id,
            dtype=shape.dtype,
            page_size=shape.page_tokens,
            rank_replicated=shape.is_mla,
            total_kv_heads=shape.num_kv_heads,
            layer_partition=grid.layer_partition,
            head_partition=grid.head_partition,
            variant=variant or Variant(),
        )

    def encoded_fields(self) -> dict[str, str | int | bool]:
        """Return the fields that the digest covers, under the names and in the order of the encoding."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model_id": self.model_id,
            "dtype": self.dtype,
            "page_size": self.page_size,
            "rank_replicated": self.rank_replicated,
            "total_kv_heads": self.total_kv_heads,
            "layer_partition": self.layer_partition,
            "head_group": self.head_partition,
            "object_layout": self.object_layout,
            **self.variant.set_fields(),
        }

    @property
    def digest(self) -> str:
        """``ukv1-`` and the first 16 hex digits of the SHA-256 of the MessagePack map of `encoded_fields`."""
        return "ukv1-" + hashlib.sha256(msgspec.msgpack.encode(self.encoded_fields())).hexdigest()[:16]


def _check_text(name: str, value: str) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"namespace field {name} = {value!r}: expected text")
    try:
        nbytes = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise ConfigError(f"namespace field {name} = {value!r} cannot be encoded as UTF-8") from None
    if not 1 <= nbytes <= _MAX_FIELD_NBYTES:
        raise ConfigError(
            f"namespace field {name} has {nbytes} bytes: expected 1 to {_MAX_FIELD_NBYTES}; leave it out if not known"
        )
