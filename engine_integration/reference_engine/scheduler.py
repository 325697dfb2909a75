"""Which request computes what, step by step. Free of torch; every rank decides the same from the same commands.

    waiting   --ready, room for all of its tokens-->   running   --last token-->   ended
       ^                                                  |
       +------ the device is full: the youngest gives its pages back, and is computed again later

Each step computes one chunk of one prompt and one token of every other running request. Whatever leads to a
decision here is the same on every rank: commands arrive at all of them in the same step, and the controller's
answers are agreed.
"""

from __future__ import annotations

from array import array
from bisect import insort
from dataclasses import dataclass

from hicache_storage.engine_integration.consensus import rank_consensus
from hicache_storage.engine_integration.controller import Controller
from hicache_storage.engine_integration.radix import Key, Tier, reusable_pages
from hicache_storage.engine_integration.reference_engine import counted
from hicache_storage.engine_integration.reference_engine.messages import Event, Failed, Generate, Token
from hicache_storage.engine_integration.reference_engine.pieces import Computed, Pieces
from hicache_storage.engine_integration.reference_engine.text import Text, why_not
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.errors import LayoutError, TierFull
from hicache_storage.layout import request_seed
from hicache_storage.telemetry import Counters

_NO_TOKEN = -1
_MOST_FAILED_RESTORES = 2
"""After so many, a request is computed without any cache: loads that always fail must not keep it for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the requests of an engine.

    Attributes:
        max_tokens: longest sequence that the model can compute.
        shares_cache: False gives each request a scope of its own, so that it finds nothing in any cache.
    """

    chunk_tokens: int
    max_running: int
    max_tokens: int
    vocab_size: int
    eos_tokens: frozenset[int] = frozenset()
    shares_cache: bool = True


class Scheduler:
    """The requests of one engine, on one rank.

    Args:
        controller: the tiers; the scheduler is its only user.
        device: the controller's device pages; for looking.
        pieces: computes what is decided here.
        counters: where to count; equal on every rank, so one rank's are enough.
    """

    def __init__(
        self, controller: Controller, device: PageAllocator, pieces: Pieces, limits: Limits, counters: Counters
    ) -> None:
        self._controller = controller
        self._device = device
        self._pieces = pieces
        self._limits = limits
        self._counters = counters
        self._page_tokens = controller.tree.page_tokens
        self._waiting: list[Text] = []
        self._running: list[Text] = []
        self._events: list[Event] = []
        self._serial = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """No request is in the engine."""
        return not self._waiting and not self._running

    def take_events(self) -> list[Event]:
        """Return what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    # -- commands --------------------------------------------------------------------------

    @rank_consensus(same_params=("request.request_id", "len(request.tokens)", "request.max_new_tokens"))
    def generate(self, request: Generate) -> None:
        """Take up a request, or fail it at once."""
        reason = why_not(request, self._limits.vocab_size)
        if reason is None and any(text.id == request.request_id for text in (*self._waiting, *self._running)):
            reason = f"request {request.request_id!r} is in the engine already"
        too_large = None if reason else self._too_large(request)
        if reason or too_large:
            self._fail(request.request_id, reason or too_large or "", is_too_large=too_large is not None)
            return
        self._serial += 1
        stop = frozenset(request.stop_tokens) | (frozenset() if request.ignore_eos else self._limits.eos_tokens)
        try:
            seed = request_seed(lora_id=request.lora_id, cache_salt=request.cache_salt)
            if not self._limits.shares_cache:
                seed = _own_scope(request, f"{self._serial}")
        except LayoutError as error:
            self._fail(request.request_id, str(error))
            return
        self._wait(Text(request, self._serial, seed, stop, array("I", request.tokens)))

    @rank_consensus(same_params="request_id")
    def abort(self, request_id: str) -> None:
        """End a request in whatever state it is; unknown ids are ignored."""
        for text in self._waiting:
            if text.id == request_id:
                self._waiting.remove(text)
                self._controller.abort(request_id)
                self._events.append(Token(request_id, _NO_TOKEN, "abort"))
                return
        for text in self._running:
            if text.id == request_id:
                self._running.remove(text)
                self._controller.finish(request_id, text.tokens[: text.computed])
                self._events.append(Token(request_id, _NO_TOKEN, "abort"))
                return

    def abort_all(self) -> None:
        """End every request."""
        for text in (*self._waiting, *self._running):
            self.abort(text.id)

    # -- a step ----------------------------------------------------------------------------

    @rank_consensus(same_results=True)
    def step(self) -> bool:
        """Apply what has finished, admit, compute one batch; say whether anything was computed. A collective."""
        self._controller.step()
        self._admit()
        batch = self._plan()
        if not batch:
            return False
        pieces = [text.piece(self._limits.chunk_tokens) for text in batch]
        for text, stop, computed in zip(
            batch, (piece.stop for piece in pieces), self._pieces.compute(pieces), strict=True
        ):
            self._apply(text, stop, computed)
        return True

    def _admit(self) -> None:
        """Start the oldest request that is ready, unless another one is still being prefilled."""
        if len(self._running) >= self._limits.max_running or any(text.is_prefilling for text in self._running):
            return
        for text in self._waiting:
            if self._controller.ready(text.id):
                # Whoever came later does not overtake: a large request would never have room.
                if self._has_room(text):
                    self._start(text)
                return

    @rank_consensus(same_params="text.id", same_results=("text.cached", "text.pages"))
    def _start(self, text: Text) -> None:
        admission = self._controller.admit(text.id)
        text.pages = list(admission.pages)
        text.loads = admission.loads
        text.computed = admission.cached.total
        self._waiting.remove(text)
        try:
            text.pages += self._controller.allocate(text.id, self._num_pages(len(text.tokens)) - len(text.pages))
        except TierFull:
            # Rare, since room was looked for: what is on its way holds pages that cannot be given up yet.
            self._again(text)
            return
        insort(self._running, text, key=_by_arrival)
        if text.cached is None:
            text.cached = admission.cached
            self._count_cached(text)

    @rank_consensus(same_results="result[*].id")
    def _plan(self) -> list[Text]:
        """Return whose next piece is computed in this step, the oldest first, each with its pages."""
        # A text that gives up its pages for an older one is not there any more when it is its turn.
        return [text for text in list(self._running) if text in self._running and self._make_room(text)]

    def _make_room(self, text: Text) -> bool:
        """Give *text* the pages of its next piece; False if it has to wait, or to start again.

        Younger requests give up theirs for it. The oldest always goes on: what keeps it from that are transfers,
        which end.
        """
        missing = self._num_pages(text.piece(self._limits.chunk_tokens).stop) - len(text.pages)
        while missing > 0:
            try:
                text.pages += self._controller.allocate(text.id, missing)
                return True
            except TierFull:
                victim = self._running[-1]
                if len(self._running) == 1:
                    return False
                self._preempt(victim)
                if victim is text:
                    return False
        return True

    @rank_consensus(same_params="text.id")
    def _preempt(self, text: Text) -> None:
        """Give the pages of *text* to whoever needs them; what nobody needs it will find again."""
        self._running.remove(text)
        self._controller.finish(text.id, text.tokens[: text.computed])
        self._counters.add(counted.PREEMPTIONS)
        text.release()
        self._wait(text)

    def _again(self, text: Text) -> None:
        """Let *text*, which is in no queue, wait as if it had just arrived."""
        self._controller.abort(text.id)
        text.release()
        self._wait(text)

    @rank_consensus(same_params=("text.id", "text.num_failed"))
    def _restore_failed(self, text: Text) -> None:
        self._counters.add(counted.RESTORES_FAILED)
        text.num_failed += 1
        if text.num_failed >= _MOST_FAILED_RESTORES:
            text.seed = _own_scope(text.request, f"{text.serial}/{text.num_failed}")
        self._again(text)

    def _wait(self, text: Text) -> None:
        self._controller.arrive(text.id, text.tokens, seed=text.seed)
        insort(self._waiting, text, key=_by_arrival)

    @rank_consensus(same_params=("text.id", "stop", "computed"), same_results=("text.computed", "text.pages"))
    def _apply(self, text: Text, stop: int, computed: Computed) -> None:
        if not computed.is_restored:
            self._running.remove(text)
            self._restore_failed(text)
            return
        self._counters.add(counted.TOKENS_COMPUTED, stop - text.computed)
        crossed = stop // self._page_tokens > text.computed // self._page_tokens
        text.computed, text.loads = stop, ()
        if computed.token is not None:
            text.tokens.append(computed.token)
        reason = None if computed.token is None else text.finish_reason()
        if reason is not None:
            self._running.remove(text)
            self._controller.finish(text.id, text.tokens[:stop])
        elif crossed:
            text.pages = self._controller.commit(text.id, text.tokens[:stop])
        if computed.token is not None:
            self._tell(text, computed.token, reason)

    # -- small things ----------------------------------------------------------------------

    @rank_consensus(same_params="text.id", same_results=True)
    def _has_room(self, text: Text) -> bool:
        """Return whether all tokens of *text* fit, and one page more for each request that runs."""
        tree = self._controller.tree
        reusable = reusable_pages(len(text.tokens), self._page_tokens)
        match = tree.match(Key.of(text.tokens, self._page_tokens, seed=text.seed).first(reusable))
        # What another request has locked needs no room; what nobody has is counted among what can be evicted.
        shared = sum(node.num_pages for node in match.device_node.path() if node.device.locks)
        wanted = self._num_pages(len(text.tokens)) - shared + len(self._running)
        return wanted <= self._device.num_free + tree.num_evictable(Tier.DEVICE)

    def _too_large(self, request: Generate) -> str | None:
        # The last token that is generated is never computed.
        tokens = len(request.tokens) + request.max_new_tokens - 1
        pages = self._num_pages(tokens)
        if pages > self._device.capacity:
            return (
                f"{len(request.tokens)} tokens and {request.max_new_tokens} new ones need {pages} pages of "
                f"{self._page_tokens} tokens; the device has {self._device.capacity}"
            )
        if tokens >= self._limits.max_tokens:
            return (
                f"{len(request.tokens)} tokens and {request.max_new_tokens} new ones are more than the "
                f"{self._limits.max_tokens} that the model can compute"
            )
        return None

    def _num_pages(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)

    def _tell(self, text: Text, token: int, reason: str | None) -> None:
        cached = text.cached if text.num_generated == 1 else None
        self._counters.add(counted.TOKENS_GENERATED)
        self._events.append(
            Token(
                text.id,
                token,
                reason,
                cached_device=cached.device if cached else 0,
                cached_host=cached.host if cached else 0,
                cached_store=cached.store if cached else 0,
            )
        )

    def _fail(self, request_id: str, reason: str, *, is_too_large: bool = False) -> None:
        self._counters.add(counted.REQUESTS_REFUSED)
        self._events.append(Failed(request_id, reason, is_too_large))

    def _count_cached(self, text: Text) -> None:
        if text.cached is not None:
            self._counters.add(counted.PROMPT_TOKENS, len(text.request.tokens))
            self._counters.add(counted.CACHED_DEVICE, text.cached.device)
            self._counters.add(counted.CACHED_HOST, text.cached.host)
            self._counters.add(counted.CACHED_STORE, text.cached.store)


def _by_arrival(text: Text) -> int:
    return text.serial


def _own_scope(request: Generate, name: str) -> str | None:
    """Return the scope of a request that shares nothing with any other."""
    return request_seed(lora_id=request.lora_id, cache_salt=request.cache_salt, extra_key=name)
