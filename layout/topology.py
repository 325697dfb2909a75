"""Which layers and heads a rank holds, for any TP and PP size. Engines decide this; we only compute it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from hicache_storage.errors import ConfigError, LayoutError
from hicache_storage.layout.geometry import KVShape

_NAME = re.compile(r"(?:tp(\d{1,5}))?/?(?:pp(\d{1,5}))?(?::(\d+(?:\+\d+)*))?")


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank holds of every page: a half-open range of layers and one of global KV heads.

    ``heads`` is empty for MLA, whose rows have no heads.
    """

    layers: range
    heads: range

    def __post_init__(self) -> None:
        if self.layers.step != 1 or self.heads.step != 1 or not self.layers:
            raise LayoutError(f"a shard holds contiguous layers and heads, got {self.layers} and {self.heads}")


@dataclass(frozen=True, slots=True)
class Topology:
    """A deployment's tensor and pipeline parallel sizes.

    Attributes:
        pp_layers: layers of each stage; None splits evenly and gives the remainder to the last
            stages, one layer each (the rule of SGLang's ``get_pp_indices``).
    """

    tp: int = 1
    pp: int = 1
    pp_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.tp < 1 or self.pp < 1:
            raise ConfigError(f"tp = {self.tp} and pp = {self.pp}: both are at least 1")
        if self.pp_layers is not None and (len(self.pp_layers) != self.pp or min(self.pp_layers) < 1):
            raise ConfigError(f"pp_layers {self.pp_layers} needs {self.pp} positive numbers, one for each stage")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the topology written as ``tp4pp2``, ``tp2``, ``pp3`` or, with layers per stage, ``tp4pp2:31+29``.

        Raises:
            ConfigError: *text* is none of these.
        """
        match = _NAME.fullmatch(text.strip().lower())
        if match is None or not (match[1] or match[2]):
            raise ConfigError(f"topology {text!r}: expected tp<N>pp<M>, such as tp4pp2 or tp4pp2:31+29")
        layers = tuple(int(count) for count in match[3].split("+")) if match[3] else None
        return cls(int(match[1] or 1), int(match[2] or 1), layers)

    @property
    def name(self) -> str:
        stages = ":" + "+".join(map(str, self.pp_layers)) if self.pp_layers else ""
        return f"tp{self.tp}pp{self.pp}{stages}"

    def ranks(self) -> Iterator[tuple[int, int]]:
        """Yield every ``(tp_rank, pp_rank)``, stage by stage."""
        for pp_rank in range(self.pp):
            for tp_rank in range(self.tp):
                yield tp_rank, pp_rank

    def layers(self, shape: KVShape, pp_rank: int) -> range:
        """Return the layers of stage *pp_rank*.

        Raises:
            LayoutError: the model has fewer layers than stages, or `pp_layers` adds up to another number.
        """
        _check_rank("pp_rank", pp_rank, self.pp)
        if self.pp_layers is not None:
            if sum(self.pp_layers) != shape.num_layers:
                raise LayoutError(f"{self.name} names {sum(self.pp_layers)} layers, the model has {shape.num_layers}")
            start = sum(self.pp_layers[:pp_rank])
            return range(start, start + self.pp_layers[pp_rank])
        base, remainder = divmod(shape.num_layers, self.pp)
        if base == 0:
            raise LayoutError(f"{self.name} has {self.pp} stages, the model has {shape.num_layers} layers")
        longer_before = max(0, pp_rank - (self.pp - remainder))
        start = pp_rank * base + longer_before
        return range(start, start + base + (pp_rank >= self.pp - remainder))

    def heads(self, shape: KVShape, tp_rank: int) -> range:
        """Return the global KV heads of TP rank *tp_rank*; with more ranks than heads, ranks share a head.

        Raises:
            LayoutError: neither of heads and TP size divides the other.
        """
        _check_rank("tp_rank", tp_rank, self.tp)
        total = shape.num_kv_heads
        if shape.is_mla:
            return range(0)
        if total % self.tp == 0:
            local = total // self.tp
            return range(tp_rank * local, (tp_rank + 1) * local)
        if self.tp % total == 0:
            head = tp_rank // (self.tp // total)
            return range(head, head + 1)
        raise LayoutError(f"{self.name} cannot divide {total} KV heads over {self.tp} TP ranks")

    def shard(self, shape: KVShape, *, tp_rank: int, pp_rank: int) -> Shard:
        """Return what the rank holds of every page."""
        return Shard(self.layers(shape, pp_rank), self.heads(shape, tp_rank))

    def is_writer(self, shape: KVShape, *, tp_rank: int) -> bool:
        """Say whether this TP rank writes its shard: one rank is elected where several hold the same bytes.

        MLA rows are the same on every TP rank and rank 0 writes them; of the ranks that share a
        replicated head the first one writes.
        """
        _check_rank("tp_rank", tp_rank, self.tp)
        return tp_rank in self.writing_tp_ranks(shape)

    def copies(self, shape: KVShape) -> int:
        """Return how many TP ranks of a stage hold the same bytes: all for MLA, those that share a head otherwise."""
        return self.tp if shape.is_mla else max(1, self.tp // shape.num_kv_heads)

    def writing_tp_ranks(self, shape: KVShape) -> range:
        """Return the elected TP ranks of each stage, one for each shard that differs; see `is_writer`."""
        return range(0, self.tp, self.copies(shape))


def _check_rank(name: str, rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise LayoutError(f"{name} = {rank} is not in [0, {size})")
