"""Everything at once: requests, aborts, flushes and stores that come and go, on tiers that are too small."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_storage.engine_integration.options import PREFETCH_POLICIES, WRITE_POLICIES
from hicache_storage.engine_integration.reference_engine.messages import (
    Abort,
    Answered,
    Attach,
    Command,
    Detach,
    Flush,
    Generate,
    Report,
    Token,
)
from tests.engine_integration.reference_engine.asking import EAGER, ask, config, prompt
from tests.engine_integration.reference_engine.thread_ranks import ThreadEngine

TOPOLOGIES = ("tp2pp2", "tp1pp3:1+2+1", "tp4pp1", "tp1pp1")
ROUNDS = 10


class Traffic:
    """Random commands to an engine, and what came back."""

    def __init__(self, engine: ThreadEngine, rng: random.Random, store: str) -> None:
        self.requests: dict[str, Generate] = {}
        self.said: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self._engine, self._rng, self._store = engine, rng, store
        self._unanswered = 0

    def run(self) -> None:
        for _ in range(ROUNDS):
            for _ in range(self._rng.randint(1, 3)):
                self._ask()
            self._command()
            self._hear(self._rng.randint(0, 6))
        self._hear(0)

    def _ask(self) -> None:
        rng, name = self._rng, f"{len(self.requests)}"
        request = Generate(name, prompt(rng.randint(1, 5), rng.randint(1, 40)), rng.randint(1, 16))
        self.requests[name], self.said[name] = request, []
        self._engine.send(request)

    def _command(self) -> None:
        commands: list[Command | None] = [
            Abort(f"{self._rng.randrange(len(self.requests))}"),
            Detach(1),
            Attach(2, self._store),
            Flush(3),
            Report(4),
            None,
        ]
        (command,) = self._rng.choices(commands, weights=[6, 2, 2, 1, 1, 8])
        if command is not None:
            self._engine.send(command)
            self._unanswered += not isinstance(command, Abort)

    def _hear(self, most: int) -> None:
        """Take in events until at most so many requests are under way, or all is said if that is none."""
        while len(self.requests) - len(self.reasons) > most or (not most and self._unanswered):
            event = self._engine.receive()
            if isinstance(event, Answered):
                self._unanswered -= 1
                continue
            assert isinstance(event, Token), event
            if event.token >= 0:
                self.said[event.request_id].append(event.token)
            if event.finish_reason is not None:
                self.reasons[event.request_id] = event.finish_reason


@pytest.mark.parametrize("seed", range(4))
def test_every_request_gets_the_tokens_of_an_engine_of_its_own(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    settings = config(
        folder=tmp_path,
        topology=TOPOLOGIES[seed % len(TOPOLOGIES)],
        layer_partition=1,
        head_partition=1,
        device_pages=rng.randint(16, 32),
        tiers=replace(
            EAGER,
            host_ratio=rng.choice([0.5, 1.0, 3.0]),
            write_policy=WRITE_POLICIES[seed % 3],
            prefetch_policy=PREFETCH_POLICIES[(seed + 1) % 3],
            prefetch_timeout_base_s=0.02,
        ),
    )

    with ThreadEngine(settings) as engine:
        traffic = Traffic(engine, rng, f"file://{tmp_path}")
        traffic.run()

    with ThreadEngine(config(cache="off", max_running=1)) as alone:
        for name, request in traffic.requests.items():
            whole, said = ask(alone, request)[name].tokens, traffic.said[name]
            assert said == (whole[: len(said)] if traffic.reasons[name] == "abort" else whole)
