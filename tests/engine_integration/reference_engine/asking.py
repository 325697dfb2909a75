"""Small engines, and requests put to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, StoreTarget
from hicache_storage.engine_integration.reference_engine.messages import (
    Answered,
    Command,
    Event,
    Failed,
    Generate,
    Report,
    Token,
)
from hicache_storage.engine_integration.reference_engine.model_config import LatentShape
from hicache_storage.engine_integration.reference_engine.random_shape import RandomShape

PAGE_TOKENS = 4
VOCAB = 97
GQA = RandomShape(
    num_layers=4, num_heads=8, num_kv_heads=4, head_dim=4, mlp_size=48, vocab_size=VOCAB, tied_embeddings=False
)
MLA = RandomShape(
    num_layers=4,
    num_heads=8,
    head_dim=4,
    mlp_size=48,
    vocab_size=VOCAB,
    tied_embeddings=False,
    latent=LatentShape(kv_rank=16, query_rank=12, nope_dim=6, rope_dim=4, value_dim=5),
)
SHAPES = {"gqa": GQA, "mla": MLA}
EAGER = TierOptions(
    prefetch_threshold_tokens=PAGE_TOKENS,
    load_back_threshold_tokens=0,
    prefetch_policy="wait_complete",
    store_batch_pages=4,
)
"""Everything is fetched and loaded, however short."""


class Talks(Protocol):
    def send(self, command: Command) -> None: ...

    def receive(self) -> Event | None: ...


@dataclass(slots=True)
class Answer:
    """What an engine said about one request."""

    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    cached: tuple[int, int, int] = (0, 0, 0)
    failure: Failed | None = None


def config(shape: RandomShape = GQA, *, folder: Path | None = None, **changes: object) -> EngineConfig:
    """Return a small engine, with a file store in *folder* if there is one."""
    fields: dict[str, object] = {
        "model_id": "small",
        "random": shape,
        "seed": 5,
        "page_tokens": PAGE_TOKENS,
        "device_pages": 64,
        "chunk_tokens": 8,
        "tiers": EAGER,
        "threads": 1,
        "timeout_s": 60.0,
        "background_timeout_s": 60.0,
    }
    if folder is not None:
        fields["store"] = StoreTarget(backend=f"file://{folder}")
    return EngineConfig(**(fields | changes))  # type: ignore[arg-type]


def prompt(serial: int, tokens: int = 30) -> tuple[int, ...]:
    """Return a prompt that shares nothing with those of other serials."""
    return tuple((serial * 31 + at * at * 7 + at) % VOCAB for at in range(tokens))


def ask(engine: Talks, *requests: Generate) -> dict[str, Answer]:
    """Send *requests* at once and return their answers, by id."""
    for request in requests:
        engine.send(request)
    return hear(engine, (request.request_id for request in requests))


def hear(engine: Talks, request_ids: Iterable[str]) -> dict[str, Answer]:
    answers = {request_id: Answer() for request_id in request_ids}
    while any(answer.reason is None and answer.failure is None for answer in answers.values()):
        event = engine.receive()
        assert isinstance(event, Token | Failed), event
        answer = answers[event.request_id]
        if isinstance(event, Failed):
            answer.failure = event
            continue
        if not answer.tokens:
            answer.cached = (event.cached_device, event.cached_host, event.cached_store)
        if event.token >= 0:
            answer.tokens.append(event.token)
        answer.reason = event.finish_reason
    return answers


def answered(engine: Talks, command: Command) -> Answered:
    engine.send(command)
    event = engine.receive()
    assert isinstance(event, Answered), event
    return event


def counters(engine: Talks) -> dict[str, int]:
    return answered(engine, Report(command_id=0)).counters


def turns(serials: Sequence[int] = (1, 2, 3), *, new_tokens: int = 7, name: str = "") -> list[Generate]:
    """Return a request for each serial."""
    return [Generate(f"{name}{serial}", prompt(serial), new_tokens) for serial in serials]
