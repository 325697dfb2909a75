"""How an engine is set up: one value that its parent encodes and every rank decodes. Free of torch."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from hicache_storage.engine_integration.consensus.options import Mode, environment_of
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.reference_engine.random_shape import RandomShape
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Topology

CacheTiers: TypeAlias = Literal["off", "device", "host"]
KeyScheme: TypeAlias = Literal["unified", "rank-suffix"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class StoreTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A store to attach. Its options may hold secrets in the clear: for pipes only.

    Attributes:
        backend: a registered name, URL or ``module:Class``.
        extra_config: JSON of its options, or ``@file``.
    """

    backend: str
    extra_config: str | None = None

    def __repr__(self) -> str:
        return f"StoreTarget(backend={self.backend!r}, extra_config=...)"


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: the same on every rank.

    Attributes:
        model: folder of ``config.json`` and ``*.safetensors``; None for a random model.
        random: a model of seeded random weights in the place of *model*.
        seed: of the random weights.
        model_id: the model's name in every key.
        weights_revision: hash or version of the weights, also in every key.
        topology: ``tp2pp4`` and so on, as `Topology.parse` reads it.
        dtype: of weights and computation, ``float32`` or ``bfloat16``.
        kv_dtype: of the KV pools; None is *dtype*, ``float8_e4m3fn`` halves or quarters them.
        device: ``cpu``, or ``cuda`` with one GPU for each rank.
        threads: CPU threads of each rank; None divides the machine's among the ranks of a stage.
        page_tokens: tokens of a page.
        device_pages: pages of each rank's device pool.
        chunk_tokens: a prompt is computed in chunks that end at multiples of this.
        max_running: requests that are computed at the same time.
        cache: ``host`` keeps prefixes on device and host and, if there is a store, in it; ``device`` on the
            device alone; ``off`` shares nothing between requests.
        tiers: how KV moves between the tiers.
        store: attached at the start; None for none.
        key_scheme: ``unified``: any topology reads what any other wrote. ``rank-suffix``: one object for each page
            and rank, for the same topology alone.
        layer_partition, head_partition: the grid of objects; None lets the planner choose for this topology.
        writes_store: False for an engine that only reads the store.
        timeout_s: longest time that a rank waits for another one.
        background_timeout_s: the same for the threads that talk to the store, which may wait for a slow one, and for
            those that compare ranks.
        rank_consensus: whether ranks are compared, and what happens when they differ; None as the environment says.
        rank_consensus_log_folder: where each rank writes what was compared; None as the environment says.
        log_level: least level of what a rank logs; ``debug`` is for this package, other libraries log from ``info`` on.
    """

    model_id: str
    model: str | None = None
    random: RandomShape | None = None
    seed: int = 0
    weights_revision: str | None = None
    topology: str = "tp1pp1"
    dtype: str = "float32"
    kv_dtype: str | None = None
    device: str = "cpu"
    threads: int | None = None
    page_tokens: int = 16
    device_pages: int = 1024
    chunk_tokens: int = 512
    max_running: int = 32
    cache: CacheTiers = "host"
    tiers: TierOptions = TierOptions()
    store: StoreTarget | None = None
    key_scheme: KeyScheme = "unified"
    layer_partition: int | None = None
    head_partition: int | None = None
    writes_store: bool = True
    timeout_s: float = 120.0
    background_timeout_s: float = 600.0
    rank_consensus: Mode | None = None
    rank_consensus_log_folder: str | None = None
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        if (self.model is None) == (self.random is None):
            raise ConfigError("an engine has one model: give either model, a folder, or random, a shape")
        for name in ("page_tokens", "device_pages", "chunk_tokens", "max_running"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected 1 or more")
        if self.cache != "host" and self.store is not None:
            raise ConfigError(f"cache = {self.cache!r} has no host pages, and a store is reached through them alone")
        if self.key_scheme == "rank-suffix" and (self.layer_partition or self.head_partition):
            raise ConfigError("key_scheme = 'rank-suffix' stores whole shards; partitions are for 'unified'")

    @property
    def ranks(self) -> Topology:
        """The topology, read."""
        return Topology.parse(self.topology)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that its processes start with: what is compared is decided when modules are imported."""
        return environment_of(self.rank_consensus, self.rank_consensus_log_folder)


encode_config = msgspec.msgpack.Encoder().encode
decode_config = msgspec.msgpack.Decoder(EngineConfig).decode
