"""What the demo's processes are told and what they answer: JSON between processes, never pickles."""

from __future__ import annotations

import msgspec

from hicache_storage.config import Secret
from hicache_storage.layout import Grid, KVShape, Namespace, Shard, ShardLayout, Variant
from hicache_storage.registry import ResolvedStore, open_store
from hicache_storage.store import ObjectStore


class StoreSpec(msgspec.Struct, frozen=True):
    """How a child opens the store that its parent resolved. Secrets are in the clear: for pipes only."""

    target: str
    options: dict[str, str | int | float | bool]

    @classmethod
    def of(cls, resolved: ResolvedStore) -> StoreSpec:
        kind = resolved.store_type
        given = {
            setting.name: _plain(setting.value)
            for setting in resolved.settings
            if setting.source != "default" and setting.value is not None
        }
        return cls(f"{kind.__module__}:{kind.__qualname__}", given)

    def open(self) -> ObjectStore:
        return open_store(self.target, self.options)


class CacheSpec(msgspec.Struct, frozen=True):
    """The model's KV, the grid of its objects and the namespace they live in."""

    model_id: str
    weights_revision: str
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_tokens: int
    layer_partition: int
    head_partition: int

    @property
    def shape(self) -> KVShape:
        return KVShape.mha(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            page_tokens=self.page_tokens,
        )

    @property
    def grid(self) -> Grid:
        return Grid(self.layer_partition, self.head_partition)

    @property
    def namespace(self) -> Namespace:
        variant = Variant(weights_revision=self.weights_revision)
        return Namespace.of(model_id=self.model_id, shape=self.shape, grid=self.grid, variant=variant)

    def layout(self, shard: Shard) -> ShardLayout:
        return ShardLayout(self.shape, self.grid, shard)


class Region(msgspec.Struct, frozen=True):
    """Where one writing rank's host pages lie in the hand-over file."""

    tp_rank: int
    pp_rank: int
    offset: int
    nbytes: int


class PrefillJob(msgspec.Struct, frozen=True):
    """Compute the prompt's KV and cut it into *regions* of the file behind descriptor *handover*."""

    folder: str
    cache: CacheSpec
    writer: str
    tokens: list[int]
    num_pages: int
    handover: int
    regions: list[Region]


class PrefillResult(msgspec.Struct, frozen=True):
    """How long computing took, and how long cutting the KV into shards."""

    prefill_s: float
    cut_s: float


class WriteJob(msgspec.Struct, frozen=True):
    """Write the pages of *region* to the store, as the rank it names."""

    store: StoreSpec
    cache: CacheSpec
    writer: str
    page_hashes: list[str]
    handover: int
    region: Region


class WriteResult(msgspec.Struct, frozen=True):
    """What this rank stored; objects that were there already are not counted."""

    objects_stored: int
    nbytes_stored: int
    write_s: float


class ReadJob(msgspec.Struct, frozen=True):
    """Continue the prompt as one rank of *reader*, first without the store and then with it.

    Attributes:
        rendezvous: descriptor of the file through which the ranks find each other; unused by a single rank.
        timeout_s: how long a rank waits for another.
    """

    store: StoreSpec
    cache: CacheSpec
    folder: str
    reader: str
    tp_rank: int
    pp_rank: int
    tokens: list[int]
    num_pages: int
    page_hashes: list[str]
    max_new_tokens: int
    rendezvous: int
    timeout_s: float


class ReadResult(msgspec.Struct, frozen=True):
    """What one rank saw.

    Attributes:
        restore_s: this rank's time to read its pages and move them into its pool.
        objects: objects that this rank read, whole or in part.
        nbytes: bytes of this rank's pages.
        failure: the first error that made a page a miss, empty if there was none.
        failure_status: the exit status that stands for it, else 0.
    """

    ttft_cold_s: float
    ttft_warm_s: float
    restore_s: float
    pages_hit: int
    objects: int
    nbytes: int
    failure: str
    failure_status: int
    cold: list[int]
    warm: list[int]


def _plain(value: object) -> str | int | float | bool:
    """Return an option's value as JSON can carry it; a source could have given it in this form."""
    if isinstance(value, Secret):
        return value.reveal()
    return value if isinstance(value, (str, int, float, bool)) else str(value)
