"""A model without a model: the KV of a token is the token, and the next one is a sum over all that it reads.

A page that is read and was not written, or was written for another sequence, gives other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache_storage.engine_integration.controller import Controller, Pools
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.reference_engine.messages import Event, Failed, Generate, Token
from hicache_storage.engine_integration.reference_engine.pieces import Computed, Piece
from hicache_storage.engine_integration.reference_engine.scheduler import Limits, Scheduler
from hicache_storage.engine_integration.tiers.slots import PageAllocator
from hicache_storage.telemetry import Counters

PAGE_TOKENS = 4
VOCAB = 97


def token_behind(tokens: Sequence[int]) -> int:
    return sum((at + 1) * token for at, token in enumerate(tokens)) % VOCAB


def expected(request: Generate) -> list[int]:
    """Return what the coded model says to *request*, its length alone ending it."""
    tokens = list(request.tokens)
    for _ in range(request.max_new_tokens):
        tokens.append(token_behind(tokens))
    return tokens[len(request.tokens) :]


class CodedModel:
    """Computes pieces from device pages that hold tokens.

    Attributes:
        batches: what was asked of it.
        is_restored: asked for each piece.
    """

    def __init__(self, pages: int) -> None:
        self.batches: list[list[Piece]] = []
        self.is_restored: Callable[[Piece], bool] = lambda _: True
        self._slots = [-1] * (pages * PAGE_TOKENS)

    def compute(self, batch: Sequence[Piece]) -> list[Computed]:
        self.batches.append(list(batch))
        return [self._compute(piece) for piece in batch]

    def _compute(self, piece: Piece) -> Computed:
        slots = [page * PAGE_TOKENS + at for page in piece.pages for at in range(PAGE_TOKENS)][: piece.stop]
        for slot, token in zip(slots[piece.start :], piece.tokens, strict=True):
            self._slots[slot] = token
        token = token_behind([self._slots[slot] for slot in slots])
        return Computed(token if piece.sampling else None, self.is_restored(piece))


class CodedEngine:
    """A scheduler on a coded model, on a device tier alone."""

    def __init__(self, *, pages: int = 64, chunk_tokens: int = 8, max_running: int = 8, eos: int | None = None) -> None:
        self.device = PageAllocator(pages)
        self.model = CodedModel(pages)
        self.counters = Counters()
        options = TierOptions(write_policy="write_through_selective", selective_hits=1 << 40)
        self.controller = Controller(PAGE_TOKENS, Pools(self.device, PageAllocator(1)), options=options)
        limits = Limits(
            chunk_tokens=chunk_tokens,
            max_running=max_running,
            max_tokens=200,
            vocab_size=VOCAB,
            eos_tokens=frozenset() if eos is None else frozenset({eos}),
        )
        self.scheduler = Scheduler(self.controller, self.device, self.model, limits, self.counters)
        self.events: list[Event] = []

    def generate(self, *requests: Generate) -> None:
        for request in requests:
            self.scheduler.generate(request)

    def step(self, count: int = 1) -> None:
        """Make steps, and count every book after each of them."""
        for _ in range(count):
            self.scheduler.step()
            self.events += self.scheduler.take_events()
            self.controller.check()

    def run(self) -> None:
        """Make steps until no request is left."""
        while not self.scheduler.is_idle:
            self.step()

    def said(self, request_id: str) -> list[int]:
        events = [event for event in self.events if isinstance(event, Token) and event.request_id == request_id]
        return [event.token for event in events if event.token >= 0]

    def reason(self, request_id: str) -> str | None:
        """Return how the request ended; None if it has not."""
        for event in self.events:
            if isinstance(event, Failed) and event.request_id == request_id:
                return event.reason
            if isinstance(event, Token) and event.request_id == request_id and event.finish_reason:
                return event.finish_reason
        return None

    def held(self) -> int:
        """Return how many pages somebody holds after everything cached was forgotten."""
        self.controller.flush()
        return self.device.num_held


def request(name: str, tokens: int, new_tokens: int = 4, **changes: object) -> Generate:
    """Return a request with a prompt of its own."""
    start = sum(name.encode())
    prompt = tuple((start + at * at) % VOCAB for at in range(tokens))
    return Generate(name, prompt, new_tokens, **changes)  # type: ignore[arg-type]
