"""What is compared: entries, numbered in the logical order of one rank's scheduler."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

Event: TypeAlias = Literal["call", "return", "raise", "end"]

MAX_NAME_CHARS = 200
MAX_VALUE_CHARS = 2000
ENTRY_NBYTES = 2304
"""Room for the text of any entry; a multiple of eight."""

_EVENTS: tuple[Event, ...] = ("call", "return", "raise", "end")
_WORD_NBYTES = 8


class Rank(NamedTuple):
    """A place in a deployment; sorts stage by stage, as ranks are counted."""

    pp_rank: int
    tp_rank: int

    def __str__(self) -> str:
        return f"pp{self.pp_rank}/tp{self.tp_rank}"


class Entry(NamedTuple):
    """One thing that a rank did. Two ranks agree on it if all but the time is equal.

    Attributes:
        name: qualified name of the function, ASCII, at most `MAX_NAME_CHARS`.
        value: canonical text of what was selected of parameters or result, or the name of the exception; ASCII,
            at most `MAX_VALUE_CHARS`.
        at_s: wall clock of the rank, seconds since the epoch.
    """

    number: int
    event: Event
    name: str
    value: str
    at_s: float

    def __str__(self) -> str:
        match self.event:
            case "call":
                return f"{self.name}({self.value})"
            case "return":
                return f"{self.name} returns {self.value}".rstrip()
            case "raise":
                return f"{self.name} raises {self.value}"
            case "end":
                return "the end of the run"

    def digest(self) -> int:
        """Return a signed 64-bit number that differs where entries differ."""
        data = "\0".join((self.event, self.name, self.value)).encode("ascii")
        return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)

    def packed(self) -> list[int]:
        """Return the entry, without number and time, as `ENTRY_NBYTES` / 8 integers."""
        text = "\0".join((str(_EVENTS.index(self.event)), self.name, self.value))
        data = text.encode("ascii").ljust(ENTRY_NBYTES, b"\0")
        words = range(0, ENTRY_NBYTES, _WORD_NBYTES)
        return [int.from_bytes(data[at : at + _WORD_NBYTES], "little", signed=True) for at in words]

    @classmethod
    def unpacked(cls, number: int, words: list[int]) -> Entry:
        """Return the entry *number* of another rank, from its `packed`; its time is not known."""
        data = b"".join(word.to_bytes(_WORD_NBYTES, "little", signed=True) for word in words)
        # Where name or value is empty, the padding has swallowed what separates them.
        event, name, value, *_ = [*data.rstrip(b"\0").decode("ascii").split("\0", 2), "", ""]
        return cls(number, _EVENTS[int(event)], name, value, 0.0)
