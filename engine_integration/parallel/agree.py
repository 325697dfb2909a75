"""Decisions that every rank takes alike. The only module that calls a group's collective.

Every `agree_*` function must be called by every rank of the group, in the same order. Each rank
enters the collective exactly once, also when its own part raises: a rank that left early would
leave the others waiting. Payloads are integers of a fixed number, never pickles.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar
from zlib import crc32

from hicache_storage.errors import RankFailure

T = TypeVar("T")

_REASON_WORDS = 24
_WORD_NBYTES = 8
_HEADER_WORDS = 1 + _REASON_WORDS
_FAILED = 1 << 62


class Group(Protocol):
    """Ranks that talk to each other. One thread of each rank uses one group: threads that agree
    on different things have groups of their own, or their collectives would mix.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_gather(self, step: str, values: Sequence[int]) -> list[list[int]]:
        """Return the signed 64-bit *values* of every rank, in rank order. All ranks give equally many.

        Raises:
            RankFailure: a rank did not take part within the group's deadline. The group is unusable
                from then on, on every rank: each later call raises too.
        """


class SingleRank:
    """The group of a rank that is alone."""

    rank = 0
    size = 1

    def all_gather(self, step: str, values: Sequence[int]) -> list[list[int]]:  # noqa: ARG002 - nobody to tell
        return [list(values)]


def agree_min(group: Group, step: str, local: Callable[[], int]) -> int:
    """Return the smallest of all ranks' answers, the same on every rank.

    Args:
        step: what is agreed on, for messages; ranks at different steps all raise.
        local: this rank's answer.

    Raises:
        RankFailure: on *every* rank, if *local* raised on any of them, a rank is at another step,
            or one did not come within the group's deadline.
    """
    return agree_mins(group, step, lambda: (local(),), 1)[0]


def agree_all(group: Group, step: str, local: Callable[[], bool]) -> bool:
    """Return whether every rank says yes. Raises as `agree_min` does."""
    return bool(agree_min(group, step, lambda: int(local())))


def agree_mins(group: Group, step: str, local: Callable[[], Sequence[int]], count: int) -> list[int]:
    """Return the smallest answer to each of *count* questions, in one collective. Raises as `agree_min` does."""
    return [min(answers) for answers in zip(*_gather(group, step, local, count), strict=True)]


def agree_each(group: Group, step: str, local: Callable[[], Sequence[int]], count: int) -> list[list[int]]:
    """Return every rank's answers to *count* questions, in rank order. Raises as `agree_min` does."""
    return _gather(group, step, local, count)


def agree_same(group: Group, step: str, local: Callable[[], int]) -> int:
    """Return the answer that every rank gives.

    Raises:
        RankFailure: on every rank, if two ranks differ; it names each rank's answer. Else as `agree_min`.
    """
    answers = [answer for (answer,) in _gather(group, step, lambda: (local(),), 1)]
    if len(set(answers)) > 1:
        raise RankFailure(step, {rank: f"says {answer}" for rank, answer in enumerate(answers)})
    return answers[0]


def agree_made(group: Group, step: str, make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Return what *make* returns, once it has returned on every rank. If it raises on one, no rank keeps anything.

    Args:
        undo: gives back what *make* has returned.

    Raises:
        RankFailure: as `agree_min` does, after *undo*.
    """
    made: list[T] = []

    def local() -> int:
        made.append(make())
        return len(made)

    try:
        agree_min(group, step, local)
    except BaseException:
        for one in made:
            undo(one)
        raise
    return made[0]


def _gather(group: Group, step: str, local: Callable[[], Sequence[int]], count: int) -> list[list[int]]:
    """Return every rank's answers; raise on every rank if one failed or is somewhere else."""
    error: BaseException | None = None
    mark = crc32(f"{step}/{count}".encode())
    answers: Sequence[int] = ()
    try:
        answers = local()
        if len(answers) != count:
            raise ValueError(f"{len(answers)} answers to {count} questions")  # noqa: TRY301 - this rank's own failure
        array("q", answers)  # raises here what a group would find out before the others hear of this rank
    except BaseException as caught:  # noqa: BLE001 - raised again below, on every rank
        error = caught
    if error is None:
        payload = [mark, *([0] * _REASON_WORDS), *answers]
    else:
        payload = [mark | _FAILED, *_packed(f"{type(error).__name__}: {error}"), *([0] * count)]
    everyone = group.all_gather(step, payload)
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error  # on the rank that it hits; what else is no Exception, such as an SDK's panic, is a failure like others
    reasons = {rank: why for rank, theirs in enumerate(everyone) if (why := _trouble(theirs, mark)) is not None}
    if reasons:
        raise RankFailure(step, reasons) from error
    return [theirs[_HEADER_WORDS:] for theirs in everyone]


def _trouble(payload: Sequence[int], mark: int) -> str | None:
    if payload[0] & _FAILED:
        return _unpacked(payload[1:_HEADER_WORDS])
    return None if payload[0] == mark else "is at another step than this rank"


def _packed(reason: str) -> list[int]:
    """Return the start of *reason* as `_REASON_WORDS` integers; a character cut in two is dropped by `_unpacked`."""
    room = _REASON_WORDS * _WORD_NBYTES
    data = reason.encode("utf-8", "replace")[:room].ljust(room, b"\0")
    return [int.from_bytes(data[at : at + _WORD_NBYTES], "little", signed=True) for at in range(0, room, _WORD_NBYTES)]


def _unpacked(words: Sequence[int]) -> str:
    data = b"".join(word.to_bytes(_WORD_NBYTES, "little", signed=True) for word in words)
    return data.rstrip(b"\0").decode("utf-8", "ignore")
