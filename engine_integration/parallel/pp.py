"""pp_sync: what the first pipeline stage decides, the later ones do at the same point of their own schedule.

    stage 0   smallest counts of its TP ranks --send-->
    stage 1                                        receive --send-->      when its scheduler comes to the same step
    stage 2                                                     receive

Each stage then consumes exactly those leading entries of its own ordered queues: it waits for one that is not
there yet, and leaves what it has more. Messages wait for whoever comes later, so no stage waits for a later one:
there is no barrier across stages. Every TP rank talks to the rank of the same place in the next stage. Torch-free.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from xxhash import xxh3_64_intdigest

from hicache_storage.engine_integration.parallel.agree import Group, agree_each
from hicache_storage.errors import RankFailure

_HEADER_WORDS = 3
_BODY_WORDS = 61
_WORD_NBYTES = 8
FRAME_WORDS = _HEADER_WORDS + _BODY_WORDS
"""Length of every message: turn, mark, what was taken; then counts, or who failed and why."""

_FAILED = 1 << 62
_POSITIVE = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Position:
    """A rank's place in a pipeline. Ranks are counted stage by stage."""

    stage: int
    num_stages: int
    tp_rank: int = 0
    tp: int = 1

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1

    def rank(self, stages_on: int = 0) -> int:
        """Return the number of the rank at this place of the stage *stages_on* behind this one."""
        return (self.stage + stages_on) * self.tp + self.tp_rank


class PipelineLink(Protocol):
    """One rank's way from the stage before it and to the stage behind it. Messages keep their order; none is lost.

    One thread of each rank uses a link. After a failure it is unusable.
    """

    @property
    def position(self) -> Position: ...

    def send(self, step: str, words: Sequence[int]) -> None:
        """Pass `FRAME_WORDS` signed 64-bit integers on. Waits only while a fixed number of messages is on its way.

        Raises:
            RankFailure: the stage behind is gone, or has taken none of them within the deadline.
        """

    def receive(self, step: str) -> list[int]:
        """Return the next message of the stage before.

        Raises:
            RankFailure: none came within the deadline, or the stage before is gone.
        """


class StepSync:
    """What one rank's scheduler asks at the steps where all ranks must go on alike, with or without pipeline stages.

    All calls are made by the scheduler's thread, the same ones in the same order on every rank.

    Args:
        tp_group: the ranks of this stage, for the scheduler's thread alone. Only the first stage uses it.
        link: the way through the stages; None where there is one.
    """

    def __init__(self, tp_group: Group, link: PipelineLink | None = None) -> None:
        self._tp_group = tp_group
        self._link = link
        self._is_alone = link is None and tp_group.size == 1
        self._turn = 0
        self._taken = 0

    def agree(self, step: str, counts: Callable[[], Sequence[int]], count: int) -> list[int]:
        """Return the smallest answers of the first stage's ranks to *count* questions, the same on every rank.

        Args:
            step: what is agreed on; ranks at different steps fail.
            counts: this rank's answers. Not called on later stages, whose answers do not matter.

        Raises:
            RankFailure: *counts* raised on a rank of the first stage: then on every rank. Or this stage and the one
                before are at different steps, or have taken different entries (`took`), or a message did not come
                in time: then on this rank and on those behind it; the others miss it at their next collective.
        """
        if self._is_alone:
            return _own(step, counts)
        return self._in_turn(step, lambda: self._reduced(step, counts, count), count)

    def decide(self, step: str, local: Callable[[], bool]) -> bool:
        """Return whether all of the first stage's ranks say yes. Raises as `agree` does."""
        return bool(self.agree(step, lambda: (int(local()),), 1)[0])

    def same(self, step: str, answers: Sequence[int], *, names: Sequence[str] = ()) -> None:
        """Raise unless all ranks have the same *answers*.

        Args:
            names: of the answers: only those that differ are then told, by name.

        Raises:
            RankFailure: two ranks of the first stage differ: on every rank. Or this rank differs from the first
                stage: on it and on those behind it. It names both answers.
        """
        if self._is_alone:
            return
        mine = list(answers)

        def check(theirs: list[int]) -> None:
            link = self._link
            if link is not None and theirs != mine:
                said = _said([theirs, mine], names)
                raise RankFailure(step, dict(zip((link.position.tp_rank, link.position.rank()), said, strict=True)))

        self._in_turn(step, lambda: self._equal(step, mine, names), len(mine), check)

    def took(self, *identities: str) -> None:
        """Note what was consumed, in order. At the next `agree` every rank must have noted the same.

        Equal counts of entries that are not the same ones are found by that, one step later and without a message.
        """
        if self._is_alone:
            return
        for identity in identities:
            self._taken = xxh3_64_intdigest(identity.encode(), seed=self._taken) & _POSITIVE

    def _in_turn(
        self,
        step: str,
        first: Callable[[], list[int]],
        count: int,
        check: Callable[[list[int]], None] = lambda _: None,
    ) -> list[int]:
        """Return what *first* says on the first stage; those behind hear of it, or of a failure, at once.

        Args:
            check: called on later stages with what was said; raises where a stage cannot go on with that.
        """
        self._turn += 1
        link = self._link
        if link is None:
            return first()
        try:
            if link.position.stage == 0:
                answers = first()
            else:
                answers = self._received(link, step, count)
                check(answers)
        except BaseException as error:
            self._pass_on_failure(link, step, error)
            raise
        self._pass_on(link, step, answers)
        return answers

    def _reduced(self, step: str, counts: Callable[[], Sequence[int]], count: int) -> list[int]:
        return [min(answers) for answers in zip(*self._gathered(step, counts, count), strict=True)]

    def _equal(self, step: str, mine: list[int], names: Sequence[str]) -> list[int]:
        everyone = self._gathered(step, lambda: mine, len(mine))
        if any(theirs != mine for theirs in everyone):
            raise RankFailure(step, dict(enumerate(_said(everyone, names))))
        return mine

    def _gathered(self, step: str, answers: Callable[[], Sequence[int]], count: int) -> list[list[int]]:
        """Return the answers of this stage's ranks, who have taken the same entries."""
        if self._tp_group.size == 1:
            return [_own(step, answers)]
        everyone = agree_each(self._tp_group, step, lambda: (*answers(), self._taken), count + 1)
        taken = [theirs.pop() for theirs in everyone]
        if len(set(taken)) > 1:
            raise RankFailure(step, {rank: _has_taken(digest) for rank, digest in enumerate(taken)})
        return everyone

    def _received(self, link: PipelineLink, step: str, count: int) -> list[int]:
        answers: list[int] = []
        for _ in _frames(count):
            turn, mark, taken, *body = link.receive(step)
            if mark & _FAILED:
                raise RankFailure(step, _reasons(body))
            before, mine = link.position.rank(-1), link.position.rank()
            if (turn, mark) != (self._turn, _mark(step, count)):
                reasons = {before: f"is at another step, in turn {turn}", mine: f"is in turn {self._turn}"}
                raise RankFailure(step, reasons)
            if taken != self._taken:
                raise RankFailure(step, {before: _has_taken(taken), mine: _has_taken(self._taken)})
            answers += body
        return answers[:count]

    def _pass_on(self, link: PipelineLink, step: str, answers: Sequence[int]) -> None:
        if link.position.is_last:
            return
        mark = _mark(step, len(answers))
        for start in _frames(len(answers)):
            body = answers[start : start + _BODY_WORDS]
            padding = [0] * (_BODY_WORDS - len(body))
            link.send(step, [self._turn, mark, self._taken, *body, *padding])

    def _pass_on_failure(self, link: PipelineLink, step: str, error: BaseException) -> None:
        if link.position.is_last:
            return
        own_reason = {link.position.rank(): f"{type(error).__name__}: {error}"}
        reasons = error.reasons if isinstance(error, RankFailure) else own_reason
        with suppress(RankFailure):
            link.send(step, [self._turn, _FAILED, 0, *_words(reasons)])


def _own(step: str, answers: Callable[[], Sequence[int]]) -> list[int]:
    """Return the answers of a rank that has nobody to agree with; it fails as one among others would."""
    try:
        return list(array("q", answers()))  # no message takes other numbers
    except Exception as error:
        raise RankFailure(step, {0: f"{type(error).__name__}: {error}"}) from error


def _said(everyone: Sequence[Sequence[int]], names: Sequence[str]) -> list[str]:
    """Return what each of *everyone* says; with *names*, only where they differ."""
    if not names:
        return [f"says {answers}" for answers in everyone]
    differs = [len(set(column)) > 1 for column in zip(*everyone, strict=True)]
    return [
        "says "
        + ", ".join(f"{name}={answer}" for name, answer, odd in zip(names, answers, differs, strict=True) if odd)
        for answers in everyone
    ]


def _frames(count: int) -> range:
    """Return where the bodies begin that *count* answers are cut into; there is always one."""
    return range(0, max(count, 1), _BODY_WORDS)


def _mark(step: str, count: int) -> int:
    return crc32(f"{step}/{count}".encode())


def _has_taken(digest: int) -> str:
    return f"has taken other entries from its queues, digest {digest:x}"


def _words(reasons: Mapping[int, str]) -> list[int]:
    """Return *reasons* as `_BODY_WORDS` integers, each cut so that all fit, as far as there is room for so many."""
    room = _BODY_WORDS * _WORD_NBYTES
    each = max(room // max(len(reasons), 1) - 1, 0)
    texts = [f"{rank} {reason}".encode("utf-8", "replace")[:each] for rank, reason in sorted(reasons.items())]
    data = b"\0".join(texts)[:room].ljust(room, b"\0")
    return [int.from_bytes(data[at : at + _WORD_NBYTES], "little", signed=True) for at in range(0, room, _WORD_NBYTES)]


def _reasons(words: Sequence[int]) -> dict[int, str]:
    """Return what `_words` was given; a character cut in two is left out."""
    data = b"".join(word.to_bytes(_WORD_NBYTES, "little", signed=True) for word in words)
    texts = data.rstrip(b"\0").decode("utf-8", "ignore").split("\0")
    pairs = [text.partition(" ") for text in texts]
    return {int(rank): reason for rank, _, reason in pairs if rank.isdecimal()}
