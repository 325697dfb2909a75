"""How large one token's KV is: the integers that every layout is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from hicache_storage.errors import ConfigError

ITEM_NBYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "int8": 1,
    "uint8": 1,
}
"""Logical KV dtypes and their width. Two dtypes of equal width are still two dtypes: see `Namespace`."""

_DTYPE_ALIASES = {
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
_MAX_DIMENSION = 1 << 24


def canonical_dtype(name: str) -> str:
    """Return the one name of a KV dtype: ``bf16`` and ``torch.bfloat16`` become ``bfloat16``.

    Raises:
        ConfigError: no such KV dtype.
    """
    short = name.removeprefix("torch.").lower()
    short = _DTYPE_ALIASES.get(short, short)
    if short not in ITEM_NBYTES:
        raise ConfigError(f"KV dtype {name!r} is not known; known are {', '.join(ITEM_NBYTES)}")
    return short


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """The KV of a whole model, over all ranks. Use `mha` or `mla` to make one.

    Attributes:
        num_layers: layers of the model, all pipeline stages together.
        num_kv_heads: KV heads over all TP ranks; 0 for MLA, whose latent rows have no heads.
        head_dim: elements of one head's K row; for MLA of the whole latent row.
        v_head_dim: elements of one head's V row; 0 for MLA, which has no V.
        dtype: logical KV dtype, a key of `ITEM_NBYTES`.
        page_tokens: tokens of a page.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    page_tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", canonical_dtype(self.dtype))
        for name in ("num_layers", "head_dim", "page_tokens"):
            _check_dimension(name, getattr(self, name), least=1)
        _check_dimension("num_kv_heads", self.num_kv_heads, least=0)
        _check_dimension("v_head_dim", self.v_head_dim, least=0)
        if (self.num_kv_heads == 0) != (self.v_head_dim == 0):
            raise ConfigError(
                f"num_kv_heads = {self.num_kv_heads} and v_head_dim = {self.v_head_dim}: both are 0 (MLA) or neither"
            )

    @classmethod
    def mha(
        cls,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: str,
        page_tokens: int,
        v_head_dim: int | None = None,
    ) -> Self:
        """Return the shape of a model with K and V per head (MHA, GQA, MQA)."""
        return cls(
            num_layers=num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim if v_head_dim is None else v_head_dim,
            dtype=dtype,
            page_tokens=page_tokens,
        )

    @classmethod
    def mla(cls, *, num_layers: int, latent_dim: int, dtype: str, page_tokens: int) -> Self:
        """Return the shape of a model with one latent row per token (MLA), replicated over TP."""
        return cls(
            num_layers=num_layers,
            num_kv_heads=0,
            head_dim=latent_dim,
            v_head_dim=0,
            dtype=dtype,
            page_tokens=page_tokens,
        )

    @property
    def is_mla(self) -> bool:
        return self.num_kv_heads == 0

    @property
    def item_nbytes(self) -> int:
        return ITEM_NBYTES[self.dtype]

    def k_row_nbytes(self, heads: int) -> int:
        """Return the bytes of one token's K rows of *heads* heads; for MLA of its latent row."""
        return max(heads, 1) * self.head_dim * self.item_nbytes

    def v_row_nbytes(self, heads: int) -> int:
        """Return the bytes of one token's V rows of *heads* heads; 0 for MLA."""
        return heads * self.v_head_dim * self.item_nbytes

    def cell_nbytes(self, heads: int) -> int:
        """Return the bytes of one layer of one page for *heads* heads (0 for MLA): K rows, then V rows."""
        return self.page_tokens * (self.k_row_nbytes(heads) + self.v_row_nbytes(heads))

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page of the whole model."""
        return self.num_layers * self.cell_nbytes(self.num_kv_heads)


def _check_dimension(name: str, value: int, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_DIMENSION:
        raise ConfigError(f"{name} = {value!r}: expected an integer in [{least}, {_MAX_DIMENSION}]")
