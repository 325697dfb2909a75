"""Pipeline stages as threads of one process: for tests and for simulated deployments."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from hicache_storage.engine_integration.parallel.pp import Position
from hicache_storage.errors import RankFailure

_WINDOW = 256


class ThreadLink:
    """One stage's end of a `PipelineLink`. Make those of all stages at once with `chain`."""

    def __init__(self, position: Position, before: _Pipe | None, behind: _Pipe | None) -> None:
        self.position = position
        self._before = before
        self._behind = behind

    @classmethod
    def chain(
        cls, num_stages: int, *, timeout_s: float, tp_rank: int = 0, tp: int = 1, window: int = _WINDOW
    ) -> list[ThreadLink]:
        """Return the links of one TP rank of each stage, in order.

        Args:
            timeout_s: how long a stage waits for room for a message, and for each stage before it to send one: the
                next stage gives up first, and those behind it hear why.
            window: messages on their way to a stage until the one before waits.
        """
        pipes = [_Pipe(timeout_s, window) for _ in range(num_stages - 1)]
        return [
            cls(Position(stage, num_stages, tp_rank, tp), before, behind)
            for stage, (before, behind) in enumerate(zip([None, *pipes], [*pipes, None], strict=True))
        ]

    def send(self, step: str, words: Sequence[int]) -> None:
        if self._behind is None or not self._behind.put(list(words)):
            raise self._failure(step, 1, "does not take messages")

    def receive(self, step: str) -> list[int]:
        words = None if self._before is None else self._before.get(self.position.stage)
        if words is None:
            raise self._failure(step, -1, "sent nothing")
        return words

    def leave(self) -> None:
        """Make whoever waits for this rank, or will, fail at once."""
        for pipe in (self._before, self._behind):
            if pipe is not None:
                pipe.close()

    def _failure(self, step: str, stages_on: int, what: str) -> RankFailure:
        stage = self.position.stage + stages_on
        return RankFailure(step, {self.position.rank(stages_on): f"stage {stage} {what} in time, or is gone"})


class _Pipe:
    """Messages on their way, few of them."""

    def __init__(self, timeout_s: float, window: int) -> None:
        self._timeout_s = timeout_s
        self._window = window
        self._changed = threading.Condition()
        self._messages: deque[list[int]] = deque()
        self._is_closed = False

    def put(self, words: list[int]) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._messages) < self._window, self._timeout_s)
            if self._is_closed or len(self._messages) >= self._window:
                return False
            self._messages.append(words)
            self._changed.notify_all()
            return True

    def get(self, deadlines: int) -> list[int] | None:
        """Return the oldest message, None if none comes within so many deadlines; those that were sent before the pipe was closed still come."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._messages, self._timeout_s * deadlines)
            if not self._messages:
                return None
            self._changed.notify_all()
            return self._messages.popleft()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
