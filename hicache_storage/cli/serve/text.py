"""From tokens to text as they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"
_MOST_INCOMPLETE = 3
"""Characters that a decoder shows, at the most, for the first bytes of one that is not complete: UTF-8 has four."""
_MOST_PENDING = 32
_CONTEXT_TOKENS = 6


class Detokenizer:
    """Text of a growing sequence of tokens.

    Decoders join neighbours: bytes to characters, pieces to words. So some tokens before the new ones are always
    decoded with them.

    Args:
        decode: text of a sequence of tokens.
        prompt: the tokens before the first; their text is not given.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._tokens = list(prompt[-_CONTEXT_TOKENS:])
        self._given = len(_complete(decode(self._tokens)))
        self._pending = 0

    def push(self, token: int) -> str:
        """Return the text that is complete with *token*."""
        self._tokens.append(token)
        self._pending += 1
        text = self._decode(self._tokens)
        complete = _complete(text) if self._pending < _MOST_PENDING else text
        new = complete[self._given :]
        self._given = len(complete)
        if complete == text:
            self._tokens = self._tokens[-_CONTEXT_TOKENS:]
            self._given = len(self._decode(self._tokens))
            self._pending = 0
        return new

    def finish(self) -> str:
        """Return what is left: the beginning of a character that was never completed."""
        return self._decode(self._tokens)[self._given :]


class StopFinder:
    """Looks for stop strings in text that comes in pieces.

    Attributes:
        found: one was there; nothing comes after it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = False
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        """Return what can be shown: all that neither is nor may become part of a stop string."""
        if self.found:
            return ""
        text = self._held + text
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self.found = True
            self._held = ""
            return text[: min(starts)]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Return what was held back: it has become no stop string."""
        held, self._held = self._held, ""
        return held


def _complete(text: str) -> str:
    """Return *text* without what may be the beginning of a character."""
    whole = text.rstrip(_INCOMPLETE)
    return text if len(whole) == len(text) else text[: max(len(whole), len(text) - _MOST_INCOMPLETE)]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest beginning of *stop* that *text* ends with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
