"""What the scheduler tells the workers in one step. Small plain values: they are pickled to every worker."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PageLoad:
    """Blocks of one request to be filled from the store.

    Attributes:
        page_hashes: of the pages that hold them, in order.
        prefix: hashes of the pages in front.
        first_block: block of those pages, counted over all of them, that goes to the first of `block_ids`.
        block_ids: vLLM's blocks, consecutive blocks of the request.
    """

    request_id: str
    page_hashes: tuple[str, ...]
    prefix: tuple[str, ...]
    first_block: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageSave:
    """Pages of one request that this step completes.

    Attributes:
        page_hashes: of the pages, in order.
        prefix: hashes of the pages in front.
        block_ids: vLLM's blocks of the pages, all of each.
    """

    request_id: str
    page_hashes: tuple[str, ...]
    prefix: tuple[str, ...]
    block_ids: tuple[int, ...]


@dataclass(slots=True)
class StepWork:
    """One step's work.

    Attributes:
        idle: the step computes nothing, so a worker may sleep until a load is done.
        number: of the step, if the scheduler wants to hear from every worker that it is over.
        drops_saves: what earlier steps gave to be stored is not to be stored any more.
    """

    loads: list[PageLoad] = field(default_factory=list)
    saves: list[PageSave] = field(default_factory=list)
    idle: bool = False
    number: int | None = None
    drops_saves: bool = False
