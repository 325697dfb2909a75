"""The scheduler's half: which pages of a request come from the store, and which go there. Decides for all ranks.

Knows no engine: `connector` translates. For one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from hicache_storage import telemetry
from hicache_storage.engine_integration.adapters.vllm.chain import PageChain
from hicache_storage.engine_integration.adapters.vllm.lookups import Lookups
from hicache_storage.engine_integration.adapters.vllm.work import PageLoad, PageSave, StepWork
from hicache_storage.telemetry import Counters

_IDLE_WAIT_S = 0.005
"""How long a step with nothing to compute sleeps for an answer of the store; new requests wait no longer than that."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one request gets in a step.

    Attributes:
        block_ids: blocks that the request has got; all of its blocks if *replaces*.
        computed_tokens: tokens with KV once the step is done.
    """

    request_id: str
    block_ids: Sequence[int]
    replaces: bool
    computed_tokens: int


@dataclass(slots=True)
class _Request:
    """One request's books.

    Attributes:
        local_tokens: tokens that vLLM had itself when it asked last.
        hit_pages: leading pages that the store has; None = not known.
        settled_pages: leading pages that are in the store or on their way there.
        full_pages: leading pages that are computed.
        loading: blocks that a load fills -> the page of each.
        failed: a load of it failed; the rest is computed.
        doubtful_step: the last step before it began in which another connector filled blocks, perhaps some of its own.
        is_stale: the store was emptied since it came: its KV is not shared.
    """

    tokens: Sequence[int]
    chain: PageChain
    local_tokens: int = 0
    hit_pages: int | None = None
    settled_pages: int = 0
    full_pages: int = 0
    block_ids: list[int] = field(default_factory=list)
    loading: dict[int, int] = field(default_factory=dict)
    failed: bool = False
    doubtful_step: int = 0
    is_stale: bool = False


class Sharing(Enum):
    """Whether requests share KV through the store.

    WAITS: the store is being emptied; new requests wait for the end of that. NEVER: it could not be emptied.
    """

    ON = auto()
    WAITS = auto()
    NEVER = auto()


class SchedulerSide:
    """The books of all requests that may share KV.

    Args:
        block_tokens: tokens of vLLM's block.
        page_tokens: tokens of a page, a multiple of it.
        writes: whether some worker stores pages.
    """

    def __init__(
        self, lookups: Lookups, counters: Counters, *, block_tokens: int, page_tokens: int, writes: bool
    ) -> None:
        self._lookups = lookups
        self._counters = counters
        self._block_tokens = block_tokens
        self._page_tokens = page_tokens
        self._blocks_per_page = page_tokens // block_tokens
        self._writes = writes
        self._requests: dict[str, _Request] = {}
        self._loads: list[PageLoad] = []
        self._sharing = Sharing.ON
        self._steps = 0
        self._steps_over = 0
        self._drop_step = 0
        self._doubtful_step = 0

    def match(self, request_id: str, tokens: Sequence[int], seed: str | None, local_tokens: int) -> int | None:
        """Return how many tokens behind the *local_tokens* the store has; None = ask again later.

        At least one token of the request is left to compute.

        Args:
            tokens: the request's tokens; may grow later.
            seed: see `layout.request_seed`.
            local_tokens: tokens that vLLM has itself, whole blocks.
        """
        request = self._requests.get(request_id)
        if request is None and self._sharing is not Sharing.ON:
            return None if self._sharing is Sharing.WAITS else 0
        if request is None:
            request = self._requests[request_id] = _Request(tokens, PageChain(tokens, self._page_tokens, seed))
        request.local_tokens = local_tokens
        if request.failed or request.is_stale:
            return 0
        if request.hit_pages is None:
            request.hit_pages = self._found(request_id, request)
            if request.hit_pages is None:
                return None
            request.settled_pages = request.hit_pages
        return max(0, request.hit_pages * self._page_tokens - local_tokens)

    def allocated(self, request_id: str, block_ids: Sequence[int], external_tokens: int) -> None:
        """VLLM has given the request blocks for *external_tokens* behind its own: have them filled."""
        request = self._requests.get(request_id)
        if request is None or not external_tokens:
            return
        first = request.local_tokens // self._block_tokens
        stop = (request.local_tokens + external_tokens) // self._block_tokens
        first_page, stop_page = first // self._blocks_per_page, -(-stop // self._blocks_per_page)
        hashes = request.chain.up_to(stop_page)
        wanted = tuple(block_ids[first:stop])
        request.loading = {block_id: (first + place) // self._blocks_per_page for place, block_id in enumerate(wanted)}
        self._loads.append(
            PageLoad(
                request_id,
                page_hashes=tuple(hashes[first_page:]),
                prefix=tuple(hashes[:first_page]),
                first_block=first - first_page * self._blocks_per_page,
                block_ids=wanted,
            )
        )

    def step(self, progress: Sequence[Progress], *, idle: bool, doubtful: bool = False) -> StepWork:
        """Return what the workers have to do in this step.

        Args:
            idle: it computes nothing.
            doubtful: another connector fills blocks in it. If that fails, vLLM says so only when the step is over, so
                requests that begin until then are stored later.
        """
        if idle and not self._loads:
            self._lookups.wait(_IDLE_WAIT_S)
        self._steps += 1
        if doubtful:
            self._doubtful_step = self._steps
        saves = [save for one in progress if (save := self._advance(one)) is not None]
        loads, self._loads = self._loads, []
        drops = self._drop_step == self._steps
        return StepWork(loads, saves, idle, self._steps if drops or doubtful else None, drops)

    def step_over(self, number: int) -> None:
        """All workers have ended that step, which was awaited."""
        self._steps_over = max(self._steps_over, number)

    def reset(self) -> None:
        """Share nothing of what is known: the store is being emptied.

        What the workers were given is dropped with the next step; new requests wait until `emptied` is called.
        """
        for request_id, request in self._requests.items():
            self._lookups.forget(request_id)
            request.is_stale = True
        self._sharing = Sharing.WAITS
        self._drop_step = self._steps + 1

    @property
    def nothing_on_its_way(self) -> bool:
        """Whether the store waits to be emptied, and all workers have dropped what they had to store."""
        return self._sharing is Sharing.WAITS and self._steps_over >= self._drop_step

    def emptied(self, *, is_empty: bool) -> None:
        """Share again; if the store could not be emptied, nothing until the next `reset`."""
        self._sharing = Sharing.ON if is_empty else Sharing.NEVER

    def loads_ended(self, request_ids: Sequence[str], failed_blocks: set[int]) -> None:
        """The loads of these requests are done; what failed is computed again, and stored again.

        Args:
            failed_blocks: blocks that were not filled, of any request.
        """
        if failed_blocks:
            for request in self._requests.values():
                lost = [request.loading[block_id] for block_id in failed_blocks & request.loading.keys()]
                if lost:
                    request.failed = True
                    request.settled_pages = min(request.settled_pages, *lost)
                    self._counters.add(telemetry.LOAD_FAILED)
        for request_id in request_ids:
            if request_id in self._requests:
                self._requests[request_id].loading = {}

    def postponed(self, pages: Mapping[str, int]) -> None:
        """Of these requests some worker had no room for pages from the given one on: have them stored later."""
        for request_id, page in pages.items():
            request = self._requests.get(request_id)
            if request is not None:
                request.settled_pages = min(request.settled_pages, page)

    def finished(self, request_id: str) -> None:
        """VLLM forgets the request. What is being stored of it goes on."""
        self._lookups.forget(request_id)
        request = self._requests.pop(request_id, None)
        if request is not None and self._writes and not request.is_stale:
            left_out = max(0, request.full_pages - request.settled_pages)
            self._counters.add(f"{telemetry.PAGES_NOT_STORED}.staging_full", left_out)

    def _found(self, request_id: str, request: _Request) -> int | None:
        if self._lookups.is_asked(request_id):
            return self._lookups.answer(request_id)
        pages = (len(request.tokens) - 1) // self._page_tokens
        if not pages:
            return 0
        self._lookups.ask(request_id, request.chain.up_to(pages))
        return None

    def _advance(self, progress: Progress) -> PageSave | None:
        request = self._requests.get(progress.request_id)
        if request is None:
            return None
        # Scheduled: what the store had is used. Should vLLM preempt the request, the store has more by then.
        request.hit_pages = None
        if progress.replaces:
            request.doubtful_step = self._doubtful_step
            request.block_ids = list(progress.block_ids)
        else:
            request.block_ids += progress.block_ids
        request.full_pages = min(progress.computed_tokens, len(request.tokens)) // self._page_tokens
        pages = range(request.settled_pages, request.full_pages)
        if not self._writes or not pages or request.is_stale or request.doubtful_step > self._steps_over:
            return None
        request.settled_pages = pages.stop
        hashes = request.chain.up_to(pages.stop)
        blocks = request.block_ids[pages.start * self._blocks_per_page : pages.stop * self._blocks_per_page]
        return PageSave(progress.request_id, tuple(hashes[pages.start :]), tuple(hashes[: pages.start]), tuple(blocks))
