"""The coarsest grid that a fleet of topologies can write, what it costs, and what would change it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import gcd

from hicache_storage.errors import LayoutError
from hicache_storage.layout.geometry import KVShape
from hicache_storage.layout.grid import Grid
from hicache_storage.layout.plan import plan_reads
from hicache_storage.layout.shard_layout import ShardLayout
from hicache_storage.layout.topology import Topology
from hicache_storage.layout.trailer import block_nbytes, trailer_nbytes


@dataclass(frozen=True, slots=True)
class Member:
    """What one topology of the fleet does with the grid.

    Attributes:
        reads_only: it was named as a reader; it never has to write.
        can_write: every rank's shard is made of whole chunks.
        misfit: why it cannot write; empty if it can.
        objects_per_rank: objects of a page that a rank touches, the fewest and the most of its ranks.
        whole_objects: every read takes whole objects; False where ranks read ranges of them.
    """

    topology: Topology
    reads_only: bool
    can_write: bool
    misfit: str
    objects_per_rank: tuple[int, int]
    whole_objects: bool


@dataclass(frozen=True, slots=True)
class GridPlan:
    """A grid and what it means for a fleet.

    Attributes:
        objects_per_page: objects that one page of the whole model becomes.
        object_nbytes: size of a full chunk's object, trailer included.
        advice: sentences that say which topology forces the grid and what would change it.
    """

    shape: KVShape
    grid: Grid
    members: tuple[Member, ...]
    objects_per_page: int
    object_nbytes: int
    advice: tuple[str, ...]

    @property
    def shareable(self) -> bool:
        """Whether every member that has to write can; all can read in any case."""
        return all(member.can_write or member.reads_only for member in self.members)


def coarsest_grid(shape: KVShape, writers: list[Topology]) -> Grid:
    """Return the grid with the largest chunks that every writer's shards are made of.

    Raises:
        LayoutError: no writer, or one of them cannot run a model of *shape* at all.
    """
    if not writers:
        raise LayoutError("a grid needs at least one topology that writes")
    borders, head_counts = [0], []
    for topology in writers:
        borders += [topology.layers(shape, rank).start for rank in range(topology.pp)]
        head_counts += [len(topology.heads(shape, 0))]
    # The end of the model is no border that chunks must meet: its last chunk may be short.
    return Grid(reduce(gcd, borders) or shape.num_layers, reduce(gcd, head_counts))


def plan_grid(
    shape: KVShape,
    writers: list[Topology],
    *,
    readers: list[Topology] | None = None,
    layer_partition: int | None = None,
    head_partition: int | None = None,
) -> GridPlan:
    """Return the grid for a fleet: the coarsest one, or the one given, with every member's costs.

    Args:
        writers: topologies that read and write.
        readers: topologies that only read; they never make the grid finer.
        layer_partition: fix the layers of a chunk; None = as many as possible.
        head_partition: fix the KV heads of a chunk; None = as many as possible.

    Raises:
        LayoutError: a topology cannot run the model at all, or the fixed grid does not fit it.
    """
    coarsest = coarsest_grid(shape, writers)
    grid = Grid(
        coarsest.layer_partition if layer_partition is None else layer_partition,
        coarsest.head_partition if head_partition is None else head_partition,
    )
    grid.check(shape)
    members = [_member(shape, grid, topology, reads_only=False) for topology in writers]
    members += [_member(shape, grid, topology, reads_only=True) for topology in readers or []]
    cell = grid.cell_nbytes(shape)
    payload = grid.layer_partition * cell
    return GridPlan(
        shape=shape,
        grid=grid,
        members=tuple(members),
        objects_per_page=len(grid.chunks(shape)),
        object_nbytes=payload + trailer_nbytes(payload, block_nbytes(cell)),
        advice=tuple(_advice(shape, grid, coarsest, writers)),
    )


def _member(shape: KVShape, grid: Grid, topology: Topology, *, reads_only: bool) -> Member:
    shards = [topology.shard(shape, tp_rank=tp_rank, pp_rank=pp_rank) for tp_rank, pp_rank in topology.ranks()]
    misfit = next((reason for shard in shards if (reason := grid.misfit(shape, shard))), None)
    reads = [plan_reads(ShardLayout(shape, grid, shard)) for shard in shards]
    counts = [len(plan) for plan in reads]
    whole = all(read.nbytes == read.payload_nbytes and not read.copies for plan in reads for read in plan)
    return Member(topology, reads_only, misfit is None, misfit or "", (min(counts), max(counts)), whole)


def _advice(shape: KVShape, grid: Grid, coarsest: Grid, writers: list[Topology]) -> list[str]:
    advice = []
    for topology in writers:
        misfits = (
            grid.misfit(shape, topology.shard(shape, tp_rank=tp_rank, pp_rank=pp_rank))
            for tp_rank, pp_rank in topology.ranks()
        )
        misfit = next((reason for reason in misfits if reason), None)
        if misfit:
            own = coarsest_grid(shape, [topology])
            advice.append(
                f"{topology.name} cannot write this grid: {misfit}. It would take chunks of {own.layer_partition} x "
                f"{own.head_partition} or a divisor; the whole fleet shares {coarsest.layer_partition} x "
                f"{coarsest.head_partition}. As a reader only (--readers) it is served as it is."
            )
    if grid != coarsest or len(writers) < 2:
        return advice
    objects = len(grid.chunks(shape))
    for index, topology in enumerate(writers):
        without = coarsest_grid(shape, writers[:index] + writers[index + 1 :])
        fewer = len(without.chunks(shape))
        if fewer < objects:
            advice.append(
                f"without {topology.name} as a writer the grid would be {without.layer_partition} x "
                f"{without.head_partition}: {fewer} objects a page instead of {objects}"
            )
    return advice
