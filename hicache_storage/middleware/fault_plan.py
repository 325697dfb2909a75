"""Which requests go wrong, and how: drawn from a seed, the same in every run whatever the order of the threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from hicache_storage.config import check_fields, from_mapping, option, resolve, whole_number
from hicache_storage.errors import ConfigError

Op: TypeAlias = Literal["write", "read", "stat", "delete", "quarantine", "list"]
"""One object's operation. In a batch each request counts by itself; ``exists`` and ``touch`` count as ``stat``."""

Kind: TypeAlias = Literal["error", "lost_answer", "lost_write", "miss", "short", "corrupt"]

KINDS: dict[Op, tuple[Kind, ...]] = {
    "write": ("error", "lost_answer", "lost_write"),
    "read": ("error", "miss", "short", "corrupt"),
    "stat": ("error", "miss"),
    "delete": ("error", "lost_answer", "miss"),
    "quarantine": ("error", "lost_answer", "miss"),
    "list": ("error", "miss"),
}
"""What can go wrong in each operation."""

_COUNTED = 1 << 18
_DIGEST_NBYTES = 16
_WORD = 1 << 32


def _number(most: float, expected: str) -> Callable[[object], float]:
    """Return a parser of numbers in ``[0, most]``, from ``0.1`` or ``"0.1"``."""

    def parse(value: object) -> float:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
        if not 0 <= number <= most:
            raise ValueError(expected)
        return number

    return parse


_rate = _number(1, "expected a share from 0 to 1")
_seconds = _number(threading.TIMEOUT_MAX, "expected seconds, 0 or more")


def _names(known: tuple[str, ...] | None) -> Callable[[object], tuple[str, ...]]:
    """Return a parser of several names, a list or separated by commas; of the *known* ones only, if they are given."""

    def parse(value: object) -> tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item for item in items):
            raise ValueError("expected names, in a list or separated by commas")
        wrong = [item for item in items if known is not None and item not in known]
        if wrong:
            raise ValueError(f"there is no {wrong[0]!r}, only {', '.join(known or ())}")
        return tuple(items)

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """The ``faults`` object of the ``middleware`` options: shares of the requests that go wrong, from 0 to 1."""

    seed: int = option(0, doc="the same seed gives the same faults", parse=whole_number(0, (1 << 63) - 1))
    ops: tuple[str, ...] = option(
        tuple(KINDS), doc="operations that are concerned; exists and touch are a stat", parse=_names(tuple(KINDS))
    )
    only_ranks: tuple[str, ...] | None = option(
        None,
        doc="only in processes whose HICACHE_RANK is one of these, such as tp1pp0; off = in all",
        parse=_names(None),
    )
    error_rate: float = option(0.0, doc="fail as an unreachable store does; nothing happens", parse=_rate)
    lost_answer_rate: float = option(0.0, doc="writes and deletes that happen and then fail all the same", parse=_rate)
    lost_write_rate: float = option(0.0, doc="writes that are reported as stored and are not", parse=_rate)
    miss_rate: float = option(0.0, doc="objects that are there and are not found", parse=_rate)
    short_rate: float = option(0.0, doc="reads of an object that lacks its last byte", parse=_rate)
    corrupt_rate: float = option(0.0, doc="reads with one bit flipped", parse=_rate)
    delay_rate: float = option(0.0, doc="requests that begin late", parse=_rate)
    delay_s: float = option(
        0.1, doc="how much later, in seconds; a batch waits for its slowest request", parse=_seconds
    )
    hang_rate: float = option(
        0.0, doc="requests that end with the deadline, or not before the store is closed", parse=_rate
    )

    def __post_init__(self) -> None:
        check_fields(self, "faults")
        for op, kinds in KINDS.items():
            if (total := sum(self.rate(kind) for kind in kinds)) > 1:
                raise ConfigError(
                    f"faults: of all {op} requests a share of {total:g} would go wrong, expected at most 1"
                )
        if self.delay_rate + self.hang_rate > 1:
            raise ConfigError(
                f"faults: delay_rate + hang_rate = {self.delay_rate + self.hang_rate:g}, at most 1 is all"
            )

    def rate(self, kind: Kind) -> float:
        """Return the share of the requests that go wrong in this way."""
        value: float = getattr(self, f"{kind}_rate")
        return value

    def concerns(self, rank: str) -> bool:
        """Say whether the process of the rank *rank* has faults."""
        return self.only_ranks is None or rank in self.only_ranks

    def __str__(self) -> str:
        """Return what differs from the defaults, for logs."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = [f"{field.name}={given[field.name]}" for field in fields(self) if given[field.name] != field.default]
        return " ".join(changed) or "none"


def parse_faults(value: object) -> FaultOptions:
    """Return the options that an object, or its JSON, gives.

    Raises:
        ConfigError: an option is unknown or wrong.
        ValueError: it is no object.
    """
    if isinstance(value, FaultOptions):
        return value
    try:
        decoded = msgspec.json.decode(value) if isinstance(value, str) else value
    except msgspec.DecodeError:
        decoded = None
    if not isinstance(decoded, Mapping):
        # resolve turns ValueError into ConfigError
        raise ValueError('expected an object, such as {"seed": 1, "error_rate": 0.1}')  # noqa: TRY004
    named = from_mapping({str(name): item for name, item in decoded.items()}, "middleware.faults")
    return resolve(FaultOptions, "faults", [named], environ={})[0]


@dataclass(frozen=True, slots=True)
class Strike:
    """What happens to one request.

    Attributes:
        kind: what goes wrong; None = nothing.
        wait_s: how long it is held up before.
        draw: a random number of its own, for a fault that needs one.
    """

    kind: Kind | None
    wait_s: float
    draw: int


class FaultPlan:
    """Draws what happens to each request from seed, rank, operation, key, and how often that was asked before.

    So the threads' order changes nothing, and a retry is drawn anew. How often is known of the last 262,144
    operations and keys; for others it starts at none again.
    """

    def __init__(self, options: FaultOptions, rank: str) -> None:
        self._options = options
        self._prefix = f"{options.seed}\0{rank}\0"
        self._asked: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def draw(self, op: Op, key: str) -> Strike:
        """Return what happens to this request."""
        if op not in self._options.ops:
            return Strike(None, 0.0, 0)
        name = f"{self._prefix}{op}\0{key}".encode("utf-8", "surrogatepass")
        digest = blake2b(name, digest_size=_DIGEST_NBYTES).digest()
        with self._lock:
            nth = self._asked.pop(digest, 0)
            if len(self._asked) == _COUNTED:
                del self._asked[next(iter(self._asked))]
            self._asked[digest] = nth + 1
        bits = int.from_bytes(blake2b(digest + nth.to_bytes(8), digest_size=_DIGEST_NBYTES).digest())
        return Strike(self._kind(op, bits % _WORD / _WORD), self._wait_s(bits // _WORD % _WORD / _WORD), bits >> 64)

    def _kind(self, op: Op, point: float) -> Kind | None:
        for kind in KINDS[op]:
            point -= self._options.rate(kind)
            if point < 0:
                return kind
        return None

    def _wait_s(self, point: float) -> float:
        if point < self._options.hang_rate:
            return threading.TIMEOUT_MAX
        return self._options.delay_s if point < self._options.hang_rate + self._options.delay_rate else 0.0
