"""Ranks of a deployment as threads, in stages or in one, each with a server of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.parallel.ranks import Ranks as Peers
from hicache_storage.engine_integration.parallel.thread_group import ThreadGroup
from hicache_storage.layout import page_hashes
from hicache_storage.store import ObjectStore
from tests.engine_integration.controller.engine import PAGE_TOKENS, Engine, prompt
from tests.engine_integration.parallel.pipeline import PATIENCE_S, Place, places

PROMPT = prompt(*range(8), extra=1)
HASHES = page_hashes(PROMPT, PAGE_TOKENS)


def options(**changes: object) -> TierOptions:
    """Return options under which everything is fetched and loaded, however short."""
    return TierOptions(
        prefetch_threshold_tokens=4,
        load_back_threshold_tokens=0,
        prefetch_host_fraction=1.0,
        **changes,  # type: ignore[arg-type]
    )


class Ranks:
    """Engines whose controllers agree, counted stage by stage, each with a thread that makes its calls.

    Args:
        stores: a store for each rank; None is no store.
        clocks: a clock for each rank; None stands still.
        patience_s: how long a rank waits for what the first stage has taken; it waits longer for other ranks.

    Attributes:
        groups: all ranks, for: ended backups, ended loads, probes, reads, writes, and the test itself.
    """

    def __init__(
        self,
        stores: Sequence[ObjectStore | None],
        options: TierOptions,
        clocks: Sequence[Callable[[], float]] | None = None,
        *,
        stages: int = 1,
        patience_s: float = PATIENCE_S,
        at_once: bool = False,
        pages: tuple[int, int] = (26, 22),
    ) -> None:
        self.places = places(stages, len(stores) // stages)
        self.groups = [ThreadGroup.of(len(stores), timeout_s=PATIENCE_S) for _ in range(6)]
        self._options = options
        self._clocks = clocks
        self._patience_s = patience_s
        self._at_once = at_once
        self._pages = pages
        self.engines: list[Engine] = []
        made = self.all(lambda rank: self._engine(self.places[rank], stores[rank]))
        self.engines += [engine for engine in made if isinstance(engine, Engine)]

    def all(self, call: Callable[[int], object]) -> list[object]:
        """Return what *call* returns for each rank, all of them called at once.

        Raises:
            Exception: what the first of them raised; it is gone then, and the others have heard of that.
        """

        def guarded(rank: int) -> object:
            try:
                return call(rank)
            except BaseException:
                self.leave(rank)
                raise

        with ThreadPoolExecutor(len(self.places)) as pool:
            return list(pool.map(guarded, range(len(self.places))))

    def outcomes(self, call: Callable[[int], object]) -> list[object]:
        """Return what *call* returned or raised for each rank; a rank that has raised is gone, as its process would be."""

        def caught(rank: int) -> object:
            try:
                return call(rank)
            except Exception as error:
                self.leave(rank)
                return error

        return self.all(caught)

    def leave(self, rank: int) -> None:
        self.places[rank].leave()
        for group in self.groups:
            group[rank].leave()

    def generate(self, tokens: list[int] = PROMPT) -> list[CachedTokens]:
        cached = self.all(lambda rank: self.engines[rank].generate(tokens).cached)
        assert all(isinstance(one, CachedTokens) for one in cached)
        return [one for one in cached if isinstance(one, CachedTokens)]

    def restart(self) -> None:
        """Bring everything to the store and forget it everywhere else."""
        self.all(lambda rank: self.engines[rank].controller.settle())
        self.all(lambda rank: self.engines[rank].controller.flush())

    def give_up(self) -> None:
        """End what is left of ranks that have failed."""

        def close(rank: int) -> None:
            self.engines[rank].backup.run()
            self.engines[rank].load.run()
            self.engines[rank].controller.close()

        self.outcomes(close)

    def close(self) -> None:
        self.all(lambda rank: self.engines[rank].close())

    def _engine(self, place: Place, store: ObjectStore | None) -> Engine:
        backups, loads, probes, reads, writes, _ = (group[place.rank] for group in self.groups)
        device_pages, host_pages = self._pages
        engine = Engine(
            device_pages=device_pages,
            host_pages=host_pages,
            options=self._options,
            at_once=self._at_once,
            ranks=Peers(place.sync, backups, loads, self._patience_s),
            groups=(probes, reads, writes),
            clock=self._clocks[place.rank] if self._clocks else lambda: 0.0,
        )
        if store is not None:
            engine.attach(store)
        return engine
