"""An engine that serves while its store is in trouble: requests whose answers are judged, and what was counted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hicache_storage.engine_integration.reference_engine.messages import Attach, Detach, Flush, Generate
from tests.engine_integration.reference_engine.asking import Talks, answered, ask, counters, hear, prompt
from tests.engine_integration.reference_engine.places import Place

STORED = 28
"""Tokens of a prompt of 30 that may come from a cache."""

_PROMPT_TOKENS = 30
_NEW_TOKENS = 6
_WITHIN_S = 60.0
_BEYOND_MS = 1 << 30


class Trial:
    """Requests to *engine*, each of whose answers is judged by *oracle*, an engine that caches nothing.

    Prompts are numbered; `new_prompts` gives numbers that no request has had before.
    """

    def __init__(self, engine: Talks, oracle: Talks) -> None:
        self._engine = engine
        self._oracle = oracle
        self._right: dict[int, list[int]] = {}
        self._numbers = itertools.count(1)
        self._before: dict[str, int] = {}

    @contextmanager
    def attached(self, place: Place) -> Iterator[None]:
        """Use *place* for the block, with nothing on device and host at its beginning; count from there."""
        self.forget()
        assert answered(self._engine, Attach(1, place.backend, place.target.extra_config)).error is None
        self._before = counters(self._engine)
        yield
        assert answered(self._engine, Detach(2)).error is None

    def new_prompts(self, count: int) -> list[int]:
        return [next(self._numbers) for _ in range(count)]

    def begin(self, prompts: Sequence[int]) -> None:
        """Send a request for each prompt; `end` hears them."""
        for request in _requests(prompts):
            self._engine.send(request)

    def end(self, prompts: Sequence[int]) -> list[int]:
        """Judge the answers; return how many tokens of each prompt came from the store."""
        answers = hear(self._engine, [f"{number}" for number in prompts])
        for number in prompts:
            if number not in self._right:
                (right,) = ask(self._oracle, *_requests([number])).values()
                self._right[number] = right.tokens
        assert {name: answer.tokens for name, answer in answers.items()} == {
            f"{number}": self._right[number] for number in prompts
        }
        return [answer.cached[2] for answer in answers.values()]

    def say(self, prompts: Sequence[int]) -> list[int]:
        """Answer each prompt, with the right tokens; return how many tokens of each came from the store."""
        self.begin(prompts)
        return self.end(prompts)

    def store(self, prompts: Sequence[int]) -> None:
        """Answer each prompt and have what is new of it stored, and nowhere else."""
        self.say(prompts)
        self.forget()

    def forget(self) -> None:
        """Wait for what is being stored, and forget what device and host have."""
        assert answered(self._engine, Flush(3)).error is None

    def keep(self, prompts: Sequence[int]) -> None:
        """Return once the store, and nothing else, has the prompts: a busy machine may miss a short deadline."""
        self._until(lambda: self._comes_back(prompts))
        self.forget()

    def recover(self) -> None:
        """Return once what the engine stores comes back from the store. Nothing is done for it but to go on asking."""
        self._until(lambda: self._comes_back(self.new_prompts(1)))

    def restore(self, prompts: Sequence[int]) -> list[int]:
        """Do as `say`, once no call to the store has missed its deadline, as it may on a busy machine."""
        said: list[int] = []

        def are_all_in_time() -> bool:
            before = self._num_unavailable()
            said[:] = self.say(prompts)
            in_time = self._num_unavailable() == before
            if not in_time:
                self.forget()
            return in_time

        self._until(are_all_in_time)
        return said

    def counted(self) -> dict[str, int]:
        """Return what was counted since the store was attached."""
        now = counters(self._engine)
        return {name: count for name in now if (count := now[name] - self._before.get(name, 0))}

    def slowest_ms(self, result: str) -> int:
        """Return the bound that the slowest lookup with *result* has kept, in milliseconds; 0 if there was none."""
        return max((bound for op, bound in self._times(result) if op == "exists"), default=0)

    def num_waited(self, result: str, wait_s: float) -> int:
        """Return how many calls to the store ended with *result* after *wait_s* or more."""
        return sum(count for (_, bound), count in self._times(result).items() if bound >= wait_s * 1e3)

    def _times(self, result: str) -> dict[tuple[str, int], int]:
        """Return how many calls of each operation, with *result*, have kept which bound in milliseconds."""
        found: dict[tuple[str, int], int] = {}
        for name, count in self.counted().items():
            *_, op, with_result, bound = name.split(".") if name.startswith("times.store_call.") else ("", "", "")
            if with_result == result and bound != "us":
                found[op, _BEYOND_MS if bound == "more" else int(bound)] = count
        return found

    def _num_unavailable(self) -> int:
        return sum(count for name, count in self.counted().items() if name.endswith("_failed.StoreUnavailable"))

    def _comes_back(self, prompts: Sequence[int]) -> bool:
        self.store(prompts)
        return self.say(prompts) == [STORED] * len(prompts)

    def _until(self, holds: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + _WITHIN_S
        while not holds():
            assert time.monotonic() < give_up_at, f"nothing comes back from the store: {self.counted()}"


def _requests(prompts: Sequence[int]) -> list[Generate]:
    return [Generate(f"{number}", prompt(number, _PROMPT_TOKENS), _NEW_TOKENS) for number in prompts]
