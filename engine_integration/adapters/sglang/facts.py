"""What is known of a deployment: by its rank, by its host pools, and by the engine's own model configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hicache_storage.engine_integration.adapters.sglang.engine import HiCacheStorageConfig, ModelConfig, get_server_args
from hicache_storage.errors import ConfigError, LayoutError

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Which rank this is.

    Attributes:
        is_replicated: every TP rank holds the same rows (MLA), and SGLang has TP rank 0 alone write them.
    """

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    is_replicated: bool = False

    @classmethod
    def of(cls, config: HiCacheStorageConfig) -> RankFacts:
        """Return what SGLang says of the rank.

        Raises:
            LayoutError: attention CP or decode CP is on, whose shards this adapter does not know.
        """
        for name, size in (("attention CP", config.attn_cp_size), ("decode CP (DCP)", config.dcp_size)):
            if size > 1:
                raise LayoutError(
                    f"{name} of size {size}: which part of a page a rank holds is not known to this adapter, and its "
                    "pages would be stored wrong; run without it, or without this storage backend"
                )
        return cls(
            tp_rank=config.tp_rank,
            tp_size=config.tp_size,
            pp_rank=config.pp_rank,
            pp_size=config.pp_size,
            is_replicated=config.is_mla_model,
        )

    @property
    def stage(self) -> str:
        """The pipeline stage's name."""
        return f"pp{self.pp_rank}of{self.pp_size}"

    def name(self, *, is_sharded: bool) -> str:
        """Return the rank's name, or the one that all TP ranks share where they hold the same."""
        return f"tp{self.tp_rank if is_sharded else 0}of{self.tp_size}-{self.stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """One rank's host pool of K and V or of latent rows, as integers and names.

    Attributes:
        layout: name of the order of its bytes.
        dtype: as the pool keeps it; fp8 is kept as ``uint8``.
        heads: K heads of this rank; 0 for MLA.
        head_dim, v_head_dim: elements of a row; for MLA those of the latent row, and 0.
        start_layer: the model's layer that is the pool's first.
        target_layers: layers of the model in the pool.
        draft_layers: layers of draft models behind them, which share their slots.
    """

    layout: str
    dtype: str
    page_tokens: int
    num_pages: int
    heads: int
    head_dim: int
    v_head_dim: int
    start_layer: int
    target_layers: int
    draft_layers: int = 0

    @property
    def is_mla(self) -> bool:
        return self.heads == 0

    @property
    def layers(self) -> int:
        return self.target_layers + self.draft_layers


class EngineModel:
    """What SGLang's own arguments and model configuration say; None where they say nothing."""

    def total_kv_heads(self) -> int | None:
        """KV heads of the model over all ranks, before any is replicated."""
        return _asked(
            "total_kv_heads", lambda: int(ModelConfig.from_server_args(get_server_args()).get_total_num_kv_heads())
        )

    def num_layers(self) -> int | None:
        """Layers of the model, all pipeline stages together."""
        return _asked("num_layers", lambda: int(ModelConfig.from_server_args(get_server_args()).num_hidden_layers))

    def kv_dtype(self) -> str | None:
        """The KV dtype that was asked for by name."""
        name = _asked("kv_cache_dtype", lambda: str(get_server_args().kv_cache_dtype))
        return None if name in {None, "auto", "None"} else name

    def draft_model(self) -> str | None:
        """Path or name of the draft model."""
        name = _asked("draft_model", lambda: str(get_server_args().speculative_draft_model_path))
        return None if name in {None, "None", ""} else name


def needed(value: T | None, option: str, why: str) -> T:
    """Return *value*.

    Raises:
        ConfigError: it is None; the message names the option that gives it.
    """
    if value is None:
        raise ConfigError(f"{why}: set {option} in --hicache-storage-backend-extra-config")
    return value


def _asked(what: str, ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - a model that the engine cannot describe is one that options describe
        _log.debug("sglang.unknown what=%s reason=%s", what, error)
        return None
