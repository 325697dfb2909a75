"""The answers to commands, as those see them who read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hicache_storage.backends.redis.errors import ReplyError
from hicache_storage.backends.redis.wire import Reply
from hicache_storage.types import WritableBuffer


class Answers(Protocol):
    """What comes from a server; `hicache_storage.backends.redis.wire.Wire` says what each method does."""

    def reply(self) -> Reply: ...

    def bulk_header(self) -> int | ReplyError | None: ...

    def took(self, expected: bytes) -> bool: ...

    def fill(self, targets: Sequence[WritableBuffer], on_filled: Callable[[int], None] | None = None) -> None: ...

    def skip(self, nbytes: int) -> None: ...


class EverySecond:
    """Every second answer: those between them are to an ``ASKING`` before each command, and say nothing."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.fill = answers.fill
        self.skip = answers.skip

    def reply(self) -> Reply:
        self._answers.reply()
        return self._answers.reply()

    def bulk_header(self) -> int | ReplyError | None:
        self._answers.reply()
        return self._answers.bulk_header()

    def took(self, expected: bytes) -> bool:  # noqa: ARG002 - a shortcut, which this one leaves out
        return False
