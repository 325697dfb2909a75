"""Pipeline stages as processes, over torch.distributed's point-to-point messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch
from torch import Tensor, distributed

from hicache_storage.engine_integration.parallel.pp import FRAME_WORDS, Position
from hicache_storage.errors import InvariantError, RankFailure

_WINDOW = 256


class TorchLink:
    """A `PipelineLink` of CPU tensors, over gloo as a rule.

    At most *window* sends are on their way: a further one completes the oldest first, and frees its buffer. Gloo cuts a
    rank whose deadline has passed off from all others, so those behind it name that rank, not the one that was late.

    Args:
        position: whose ranks are those of *process_group*.
        tag: of these messages alone; two links of one process group have different ones.
        process_group: None is the default group. Its ranks are the global ones.
        timeout_s: how long to wait for the completion of a send, and for each stage before this one to send a message:
            the next stage gives up first.
    """

    def __init__(
        self,
        position: Position,
        *,
        tag: int,
        timeout_s: float,
        process_group: distributed.ProcessGroup | None = None,
        window: int = _WINDOW,
    ) -> None:
        self.position = position
        self._tag = tag
        self._timeout = timedelta(seconds=timeout_s)
        self._group = process_group
        self._window = window
        self._on_way: deque[tuple[distributed.Work, Tensor]] = deque()
        self._next: tuple[distributed.Work, Tensor] | None = None

    @property
    def num_on_way(self) -> int:
        """Sends whose buffers are still held."""
        return len(self._on_way)

    def send(self, step: str, words: Sequence[int]) -> None:
        if len(self._on_way) >= self._window:
            self._complete_oldest(step)
        buffer = torch.tensor(words, dtype=torch.int64)
        try:
            work = distributed.isend(buffer, self.position.rank(1), group=self._group, tag=self._tag)
        except (RuntimeError, ValueError) as error:
            raise self._failure(step, 1, error) from error
        self._on_way.append((_started(work), buffer))

    def receive(self, step: str) -> list[int]:
        try:
            work, buffer = self._next or self._expect()
            work.wait(self._timeout * self.position.stage)
        except (RuntimeError, ValueError) as error:
            raise self._failure(step, -1, error) from error
        self._next = None
        # Whoever is gone by now has sent these all the same, most likely why; the next one will be missed.
        with suppress(RuntimeError, ValueError):
            self._next = self._expect()
        words: list[int] = buffer.tolist()
        return words

    def _expect(self) -> tuple[distributed.Work, Tensor]:
        """Return where the next message will be. Gloo moves one only once both sides know of it."""
        buffer = torch.empty(FRAME_WORDS, dtype=torch.int64)
        work = distributed.irecv(buffer, self.position.rank(-1), group=self._group, tag=self._tag)
        return _started(work), buffer

    def close(self) -> None:
        """Complete what is on its way.

        Raises:
            RankFailure: the stage behind does not take it in time.
        """
        while self._on_way:
            self._complete_oldest("close")

    def _complete_oldest(self, step: str) -> None:
        work, _ = self._on_way[0]
        try:
            work.wait(self._timeout)
        except (RuntimeError, ValueError) as error:
            raise self._failure(step, 1, error) from error
        self._on_way.popleft()

    def _failure(self, step: str, stages_on: int, error: Exception) -> RankFailure:
        stage = self.position.stage + stages_on
        return RankFailure(step, {self.position.rank(stages_on): f"stage {stage}: {str(error).splitlines()[0]}"})


def _started(work: distributed.Work | None) -> distributed.Work:
    if work is None:
        raise InvariantError("this process is no rank of the link's process group")
    return work
