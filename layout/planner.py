"""The coarsest grid that a fleet of topologies can write, what it costs, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
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
        copies: TP ranks of a stage that hold the same bytes; one of them is elected to write.
        writing_tp_ranks: TP ranks of each stage that write; empty for a member that does not or cannot.
    """

    topology: Topology
    reads_only: bool
    can_write: bool
    misfit: str
    objects_per_rank: tuple[int, int]
    whole_objects: bool
    copies: int
    writing_tp_ranks: range


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A topology that keeps a fleet from sharing.

    Attributes:
        reason: what does not fit, with both numbers.
        advice: sentences that say what would help.
    """

    topology: Topology
    reason: str
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GridPlan:
    """A grid and what it means for a fleet.

    Attributes:
        objects_per_page: objects that one page of the whole model becomes.
        object_nbytes: size of a full chunk's object, trailer included.
        obstacles: members that have to write and cannot.
        advice: sentences that say which topology forces the grid and what would change it.
    """

    shape: KVShape
    grid: Grid
    members: tuple[Member, ...]
    objects_per_page: int
    object_nbytes: int
    obstacles: tuple[Obstacle, ...]
    advice: tuple[str, ...]

    @property
    def shareable(self) -> bool:
        """Whether every member that has to write can; all can read in any case."""
        return not self.obstacles


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
    obstacles = [_obstacle_on_grid(shape, member, coarsest) for member in members if _is_obstacle(member)]
    advice = [f"{one.topology.name} cannot write this grid: {one.reason}. {' '.join(one.advice)}" for one in obstacles]
    cell = grid.cell_nbytes(shape)
    payload = grid.layer_partition * cell
    return GridPlan(
        shape=shape,
        grid=grid,
        members=tuple(members),
        objects_per_page=len(grid.chunks(shape)),
        object_nbytes=payload + trailer_nbytes(payload, block_nbytes(cell)),
        obstacles=tuple(obstacles),
        advice=tuple(advice or (_coarser(shape, grid, writers) if grid == coarsest else [])),
    )


def find_obstacles(shape: KVShape, writers: Sequence[Topology], readers: Sequence[Topology] = ()) -> list[Obstacle]:
    """Return the topologies that cannot run a model of *shape* at all; with none of them `plan_grid` has a plan.

    The advice names the nearest sizes that fit and, for a writer, what the fleet shares with them.
    """
    runnable = [topology for topology in writers if _cannot_run(shape, topology) is None]
    obstacles: list[Obstacle] = []
    for topology in dict.fromkeys((*writers, *readers)):
        reason = _cannot_run(shape, topology)
        if reason is not None:
            others = runnable if topology in writers else None
            advice = [_instead(shape, fitting, others) for fitting in _fitting(shape, topology)]
            obstacles.append(Obstacle(topology, reason, tuple(advice)))
    return obstacles


def advise_without(shape: KVShape, writers: Sequence[Topology], obstacles: Sequence[Obstacle]) -> str:
    """Say what the rest of the fleet shares once the topologies in *obstacles* have left it."""
    left_out = [obstacle.topology for obstacle in obstacles]
    rest = [topology for topology in writers if topology not in left_out]
    names = ", ".join(topology.name for topology in left_out)
    if not rest:
        return f"Without {names}: no topology is left that writes."
    whom = rest[0].name if len(rest) == 1 else "the rest of the fleet"
    return f"Without {names}: {whom} has {_grid_in_words(shape, coarsest_grid(shape, rest))}."


def _cannot_run(shape: KVShape, topology: Topology) -> str | None:
    """Say why *topology* cannot run the model, both reasons if there are two; None if it can."""
    reasons = []
    for divide in (topology.heads, topology.layers):
        try:
            divide(shape, 0)
        except LayoutError as error:
            reasons.append(str(error))
    return "; ".join(reasons) or None


def _fitting(shape: KVShape, topology: Topology) -> list[Topology]:
    """Return the topologies nearest to one that cannot run the model: each TP size around it that the heads allow."""
    pp = min(topology.pp, shape.num_layers)
    stages = topology.pp_layers if topology.pp_layers and sum(topology.pp_layers) == shape.num_layers else None
    return [Topology(tp, pp, stages) for tp in _fitting_tp(shape.num_kv_heads, topology.tp)]


def _fitting_tp(heads: int, tp: int) -> list[int]:
    """Return *tp* if it divides the heads or is a multiple of them, else the nearest that do below and above."""
    if heads == 0 or heads % tp == 0 or tp % heads == 0:
        return [tp]
    if tp > heads:
        return [tp // heads * heads, (tp // heads + 1) * heads]
    return [
        next(size for size in range(tp, 0, -1) if heads % size == 0),
        next(size for size in range(tp, heads + 1) if heads % size == 0),
    ]


def _instead(shape: KVShape, topology: Topology, others: list[Topology] | None) -> str:
    """Say what *topology* does in the place of one that cannot run; *others* are the fleet's writers, None for a reader."""
    each = _heads_in_words(shape, topology)
    if others is None:
        return f"{topology.name} fits{each}."
    grid = _grid_in_words(shape, coarsest_grid(shape, [*others, topology]))
    return f"{topology.name} fits{each}; {'with it the fleet' if others else 'it'} has {grid}."


def _heads_in_words(shape: KVShape, topology: Topology) -> str:
    if shape.is_mla:
        return ""
    copies, heads = topology.copies(shape), len(topology.heads(shape, 0))
    if copies > 1:
        return f", each KV head on {copies} ranks"
    return f", {heads} KV head{'' if heads == 1 else 's'} a rank"


def _grid_in_words(shape: KVShape, grid: Grid) -> str:
    layers = f"{grid.layer_partition} layers"
    size = layers if shape.is_mla else f"{layers} x {grid.head_partition} KV heads"
    return f"a grid of {size}: {len(grid.chunks(shape))} objects a page"


def _member(shape: KVShape, grid: Grid, topology: Topology, *, reads_only: bool) -> Member:
    elected = topology.writing_tp_ranks(shape)
    # Ranks that hold copies do the same as the elected one; there may be thousands of them.
    shards = [topology.shard(shape, tp_rank=tp, pp_rank=pp) for pp in range(topology.pp) for tp in elected]
    misfit = next((reason for shard in shards if (reason := grid.misfit(shape, shard))), None)
    reads = [plan_reads(ShardLayout(shape, grid, shard)) for shard in shards]
    counts = [len(plan) for plan in reads]
    return Member(
        topology=topology,
        reads_only=reads_only,
        can_write=misfit is None,
        misfit=misfit or "",
        objects_per_rank=(min(counts), max(counts)),
        whole_objects=all(read.nbytes == read.payload_nbytes and not read.copies for plan in reads for read in plan),
        copies=topology.copies(shape),
        writing_tp_ranks=range(0) if reads_only or misfit else elected,
    )


def _is_obstacle(member: Member) -> bool:
    return not (member.can_write or member.reads_only)


def _obstacle_on_grid(shape: KVShape, member: Member, coarsest: Grid) -> Obstacle:
    """Return how a member that can run the model is kept from writing a grid that somebody fixed."""
    own = coarsest_grid(shape, [member.topology])
    shares = f"the whole fleet shares {coarsest.layer_partition} x {coarsest.head_partition}"
    advice = (
        f"It would take chunks of {own.layer_partition} x {own.head_partition} or a divisor; {shares}.",
        "As a reader only (--readers) it is served as it is.",
    )
    return Obstacle(member.topology, member.misfit, advice)


def _coarser(shape: KVShape, grid: Grid, writers: list[Topology]) -> list[str]:
    """Return a sentence for each writer without which the grid would be coarser."""
    advice = []
    objects = len(grid.chunks(shape))
    for index, topology in enumerate(writers if len(writers) > 1 else []):
        without = coarsest_grid(shape, writers[:index] + writers[index + 1 :])
        fewer = len(without.chunks(shape))
        if fewer < objects:
            axes = f"{without.layer_partition}" + (" layers" if shape.is_mla else f" x {without.head_partition}")
            advice.append(
                f"without {topology.name} as a writer the grid would be {axes}: "
                f"{fewer} object{'s' * (fewer > 1)} a page instead of {objects}"
            )
    return advice
