"""An engine of the demo: real processes, asked one thing at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.messages import (
    Answered,
    Event,
    Failed,
    Flush,
    Generate,
    Report,
)
from hicache_storage.errors import ConfigError, InvariantError, RankFailure
from hicache_storage.interrupts import undisturbed
from hicache_storage.watchdog import watchdog


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine said to a prompt.

    Attributes:
        tokens: with the one that ended it.
        ttft_s: from sending the prompt to hearing of the first token.
        cached: tokens of the prompt that were not computed, by the tier that had them.
    """

    tokens: tuple[int, ...]
    ttft_s: float
    cached: CachedTokens


class Engine:
    """A running engine, for one thread.

    Args:
        timeout_s: longest time that one answer may take; the engine is killed then.
    """

    def __init__(self, client: EngineClient, timeout_s: float) -> None:
        self.name = client.config.topology
        self._client = client
        self._timeout_s = timeout_s
        self._ids = count()

    @property
    def pid(self) -> int:
        """Process id of the ranks' parent."""
        return self._client.pid

    def ask(self, prompt: Sequence[int], max_new_tokens: int, *, salt: str | None = None) -> Answer:
        """Return what the model says to *prompt*, greedily.

        Args:
            salt: the scope of the prompt's pages; a new one finds nothing in any cache.

        Raises:
            ConfigError: the prompt does not fit the engine.
            RankFailure: a rank died, or the answer took too long.
        """
        request = Generate(str(next(self._ids)), tuple(prompt), max_new_tokens, cache_salt=salt)
        tokens: list[int] = []
        cached, first_s, reason = CachedTokens(), 0.0, None
        with self._deadline("answer"):
            sent_s = time.perf_counter()
            self._client.send(request)
            while reason is None:
                event = self._next_event()
                if isinstance(event, Failed):
                    raise ConfigError(f"{self.name} cannot answer: {event.reason}")
                if isinstance(event, Answered):
                    raise InvariantError("an answer to a command that nobody gave")
                if not tokens:
                    first_s = time.perf_counter() - sent_s
                    cached = CachedTokens(event.cached_device, event.cached_host, event.cached_store)
                tokens.append(event.token)
                reason = event.finish_reason
        return Answer(tuple(tokens), first_s, cached)

    def counters(self) -> Mapping[str, int]:
        """Return what all ranks have counted since the start, by name."""
        with self._deadline("report"):
            self._client.send(Report(next(self._ids)))
            return self._answered().counters

    def settle(self) -> None:
        """Return once everything is stored that is to be; device and host have forgotten it."""
        with self._deadline("write"):
            self._client.send(Flush(next(self._ids)))
            self._answered()

    def _answered(self) -> Answered:
        event = self._next_event()
        if not isinstance(event, Answered):
            raise InvariantError(f"a {type(event).__name__} in the place of an answer")
        if event.error is not None:
            raise RankFailure("command", {0: event.error})
        return event

    def _next_event(self) -> Event:
        event = self._client.receive()
        if event is None:
            raise RankFailure("serve", {0: "the engine ended before it was told to"})
        return event

    @contextmanager
    def _deadline(self, step: str) -> Iterator[None]:
        """Kill the engine, and so end every wait for it, when what is done within takes too long."""
        expired = threading.Event()

        def end() -> None:
            expired.set()
            self._client.kill()

        try:
            with watchdog(self._timeout_s, end):
                yield
        except RankFailure:
            if not expired.is_set():
                raise
            raise RankFailure(step, {0: f"{self.name}: no answer within {self._timeout_s:g} s"}) from None


@contextmanager
def running(config: EngineConfig, timeout_s: float) -> Iterator[Engine]:
    """Yield an engine that is ready; it has ended afterwards, in order, or at once if what is done with it raises.

    Raises:
        HiCacheError: what kept a rank from starting or from ending in order, of its own class.
    """
    client = EngineClient(config, start_timeout_s=timeout_s)
    try:
        yield Engine(client, timeout_s)
        client.close(timeout_s)
        client.receive()
    except BaseException:
        with undisturbed():
            client.close(timeout_s=0)
        raise
