"""A request while it is in the engine: its tokens so far, and how many of them have KV. Free of torch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.controller.pools import LoadJob
from hicache_storage.engine_integration.reference_engine.messages import Generate
from hicache_storage.engine_integration.reference_engine.pieces import Piece, Sampling


@dataclass(slots=True, eq=False)
class Text:
    """A prompt and what follows it.

        tokens:  [ prompt                  | generated           )
                 [ computed: KV in `pages`        | to be computed )

    Attributes:
        serial: order of arrival; who came later waits, and gives up its pages, first.
        seed: scope of its pages; see `layout.request_seed`.
        stop_tokens: any of them ends it.
        pages: device pages it reads and writes; none while it waits.
        loads: what still arrives in them.
        cached: what its first admission found in the cache; None before.
        num_failed: how often what it should have read did not arrive.
    """

    request: Generate
    serial: int
    seed: str | None
    stop_tokens: frozenset[int]
    tokens: array[int]
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    loads: tuple[LoadJob, ...] = ()
    cached: CachedTokens | None = None
    num_failed: int = 0

    @property
    def id(self) -> str:
        return self.request.request_id

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.tokens)

    @property
    def is_prefilling(self) -> bool:
        """More than the newest token is to be computed."""
        return len(self.tokens) - self.computed > 1

    def piece(self, chunk_tokens: int) -> Piece:
        """Return what is computed next: up to the next multiple of *chunk_tokens*, or all that is left.

        Chunks end at multiples wherever they begin, so a prompt is computed in the same matrix products with
        and without a cached prefix that ends at one.
        """
        stop = min(len(self.tokens), (self.computed // chunk_tokens + 1) * chunk_tokens)
        request = self.request
        sampling = Sampling(request.temperature, request.top_p, request.seed) if stop == len(self.tokens) else None
        return Piece(self.tokens[self.computed : stop], self.computed, self.pages, self.loads, sampling)

    def finish_reason(self) -> str | None:
        """Return why the text ends with its newest token; None if it goes on."""
        if self.tokens[-1] in self.stop_tokens:
            return "stop"
        return "length" if self.num_generated == self.request.max_new_tokens else None

    def release(self) -> None:
        """Forget pages that are another's from now on."""
        self.pages, self.loads, self.computed = [], (), 0


def why_not(request: Generate, vocab_size: int) -> str | None:
    """Return what is wrong with the values of *request*, None if nothing is."""
    checks: Sequence[tuple[bool, str]] = (
        (not request.tokens, "the prompt has no token"),
        (any(not 0 <= token < vocab_size for token in request.tokens), f"token ids are not all in [0, {vocab_size})"),
        (request.max_new_tokens < 1, f"max_new_tokens = {request.max_new_tokens} is below 1"),
        (not 0 <= request.temperature < float("inf"), f"temperature = {request.temperature} is not 0 or above"),
        (not 0 < request.top_p <= 1, f"top_p = {request.top_p} is not above 0 and at most 1"),
    )
    return next((reason for is_wrong, reason in checks if is_wrong), None)
