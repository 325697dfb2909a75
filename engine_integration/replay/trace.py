"""Request traces: JSON lines of requests, as block ids or as token ids. Format: docs/replay.md."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import msgspec

from hicache_storage.engine_integration.replay.line import TraceLine
from hicache_storage.errors import ConfigError, LayoutError
from hicache_storage.layout import pack_tokens, request_seed

BLOCK_TOKENS = 512
"""Tokens that one of `hash_ids` stands for."""

_MOST_BLOCKS = (1 << 32) // BLOCK_TOKENS
_MS_PER_S = 1000
# Packed tokens as one number: 1, 1, 1, ... and 0, 1, 2, ... A sum of whole blocks is seven times as fast as a list.
_ONES = sum(1 << 32 * at for at in range(BLOCK_TOKENS))
_COUNTING = sum(at << 32 * at for at in range(BLOCK_TOKENS))

TokenArray: TypeAlias = "array[int]"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    Attributes:
        tokens: its prompt, of type code ``I``.
        arrival_s: when it came in, in seconds since the trace began.
        seed: `layout.request_seed` of what keeps it apart from others.
        line: everything that the trace has of it.
    """

    tokens: TokenArray
    arrival_s: float = 0.0
    seed: str | None = None
    line: TraceLine | None = None


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """How much there is to replay.

    Attributes:
        longest: tokens of the longest prompt.
        block_tokens: unit in which prompts can be shared; None where any number of tokens can.
    """

    num_requests: int
    num_tokens: int
    longest: int
    block_tokens: int | None


class Trace:
    """A file of requests, in the order of arrival. Each iteration reads the file again.

    Args:
        most_requests: leave out what follows the first so many.

    Attributes:
        summary: counted when the trace is opened, when every line is checked too.

    Raises:
        ConfigError: the file cannot be read, or a line is no request; which one, and why.
    """

    def __init__(self, path: Path, *, most_requests: int | None = None) -> None:
        self.path = path
        self._most_requests = most_requests
        self.summary = self._summarised()

    def __iter__(self) -> Iterator[TraceRequest]:
        blocks = _Blocks()
        for number, line in self._lines():
            with _named(self.path, number):
                tokens = _unpacked(blocks.prompt(line))
                seed = request_seed(lora_id=line.lora_id, cache_salt=line.cache_salt)
            yield TraceRequest(tokens, (line.timestamp or 0.0) / _MS_PER_S, seed, line)

    def _summarised(self) -> TraceSummary:
        count = total = longest = 0
        kinds = set()
        for _, line in self._lines():
            count += 1
            total += line.num_tokens
            longest = max(longest, line.num_tokens)
            kinds.add(line.hash_ids is not None)
        if not kinds:
            raise ConfigError(f"{self.path} has no request")
        if len(kinds) > 1:
            raise ConfigError(f"{self.path} has lines with hash_ids and lines with token_ids: the two share nothing")
        return TraceSummary(count, total, longest, BLOCK_TOKENS if kinds.pop() else None)

    def _lines(self) -> Iterator[tuple[int, TraceLine]]:
        decoder = msgspec.json.Decoder(TraceLine)
        try:
            with self.path.open("rb") as file:
                for number, text in islice(enumerate(file, 1), self._most_requests):
                    with _named(self.path, number):
                        line = decoder.decode(text)
                        _check(line)
                    yield number, line
        except OSError as error:
            raise ConfigError(f"trace {self.path} cannot be read: {error.strerror}") from error


class _Blocks:
    """Gives each block id tokens of its own, and each partial block tokens that nobody else has."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._count = 0

    def prompt(self, line: TraceLine) -> bytes:
        """Return the packed prompt of *line*."""
        if line.token_ids is not None:
            return pack_tokens(line.token_ids)
        full, rest = divmod(line.num_tokens, BLOCK_TOKENS)
        ids = line.hash_ids or []
        blocks = [_tokens_of(self._number(block)) for block in ids[:full]]
        if rest:
            blocks.append(_tokens_of(self._next())[: rest * 4])
        return b"".join(blocks)

    def _number(self, block: int) -> int:
        number = self._numbers.get(block)
        if number is None:
            number = self._numbers[block] = self._next()
        return number

    def _next(self) -> int:
        if self._count == _MOST_BLOCKS:
            raise ConfigError(f"more than {_MOST_BLOCKS} different blocks: token ids have 32 bits")
        self._count += 1
        return self._count - 1


class _named:  # noqa: N801 - a context manager, cheaper than a generator: it is entered for every line
    """Name the line in what is wrong with it."""

    def __init__(self, path: Path, number: int) -> None:
        self._path, self._number = path, number

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, msgspec.MsgspecError | LayoutError | ConfigError):
            raise ConfigError(f"{self._path}, line {self._number}: {error}") from error


def _check(line: TraceLine) -> None:
    if (line.hash_ids is None) == (line.token_ids is None):
        raise ConfigError("expected either hash_ids with input_length, or token_ids")
    if line.token_ids is not None:
        if line.input_length not in {None, len(line.token_ids)}:
            raise ConfigError(f"input_length = {line.input_length}, but there are {len(line.token_ids)} token_ids")
        return
    if line.input_length is None or line.input_length < 0:
        raise ConfigError(f"input_length = {line.input_length}: hash_ids need the number of tokens")
    wanted = -(-line.input_length // BLOCK_TOKENS)
    if len(line.hash_ids or ()) != wanted:
        raise ConfigError(
            f"{len(line.hash_ids or ())} hash_ids for {line.input_length} tokens: expected {wanted}, one for each "
            f"{BLOCK_TOKENS}"
        )


def _tokens_of(number: int) -> bytes:
    """Return the tokens of a block, packed; no two numbers have one in common."""
    return (_COUNTING + number * BLOCK_TOKENS * _ONES).to_bytes(4 * BLOCK_TOKENS, "little")


def _unpacked(ids: bytes) -> TokenArray:
    tokens = array("I", ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
