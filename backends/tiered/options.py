"""The tiered store's options: which stores, in which order, and what is copied between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from hicache_storage.config import option, parse_nbytes, whole_number
from hicache_storage.errors import ConfigError
from hicache_storage.store import ObjectStore

_EXPECTED = 'expected a list such as ["file:///mnt/kv", {"backend": "s3", "bucket": "kv"}], the fastest store first'


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One store that is to be opened.

    Its ``repr`` names the backend and its options but shows no values: they may be secrets.

    Attributes:
        target: a registered name, a URL or ``module:Class``.
        options: its options by name, ``middleware`` among them.
    """

    target: str = dataclasses.field(repr=False)
    options: Mapping[str, object] = dataclasses.field(repr=False)

    def __repr__(self) -> str:
        backend = self.target.partition("://")[0]
        return f"{backend}({', '.join(self.options)})" if self.options else backend


Tier: TypeAlias = TierSpec | ObjectStore
"""A store to open, or one that is open already; the tiered store closes both."""


def parse_stores(value: object) -> tuple[Tier, ...]:
    """Return the tiers that a list, or a JSON text of one, names.

    Raises:
        ConfigError: it is none. The value is not shown, since it may hold passwords.
    """
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise ConfigError(f"tiered option stores is not valid JSON: {error}; {_EXPECTED}") from None
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray | str) or not value:
        raise ConfigError(f"tiered option stores: {_EXPECTED}")
    return tuple(_tier(number, item) for number, item in enumerate(value))


def _tier(number: int, item: object) -> Tier:
    if isinstance(item, TierSpec | ObjectStore):
        return item
    if isinstance(item, str):
        return TierSpec(item, {})
    target = item.get("backend") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(target, str):
        raise ConfigError(f"tiered option stores[{number}]: expected a URL, or an object that has a 'backend'")
    return TierSpec(target, {str(name): setting for name, setting in item.items() if name != "backend"})


def _parse_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected seconds")  # noqa: TRY004 - config.resolve turns ValueError into ConfigError
    seconds = float(value)
    if not seconds >= 0:
        raise ValueError("expected seconds, 0 or more")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredOptions:
    """Options of `TieredStore`."""

    stores: Sequence[Tier | str | Mapping[str, object]] = option(
        doc="the stores, the fastest first: a list of URLs or of objects with 'backend' and its options",
        parse=parse_stores,
        aliases=("tiers",),
    )
    promote: Literal["none", "first", "all_above"] = option(
        "first", doc="where an object that a lower store served is copied to: nowhere, the first store, all above it"
    )
    promote_max_nbytes: int = option(64 << 20, doc="largest object that is copied upwards", parse=parse_nbytes)
    write: Literal["all", "first", "first_then_background"] = option(
        "all",
        doc="which stores a write waits for: all, the first that takes it, or that one with copies to those below "
        "made in the background",
    )
    background_jobs: int = option(4096, doc="copies that may wait; more are dropped", parse=whole_number(1, 1 << 20))
    background_threads: int = option(2, doc="threads that copy; each holds one object", parse=whole_number(1, 64))
    drain_s: float = option(10.0, doc="seconds that close and delete wait for copies under way", parse=_parse_s)
    create: bool = option(
        True,  # noqa: FBT003 - a default
        doc="make the stores that are missing; false = only look: each must be there, and nothing is copied upwards",
    )
    evict: bool = option(
        True,  # noqa: FBT003 - a default
        doc="keep the capacities of the stores; false = open them without, so that nothing makes room for what is written",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            parse: Callable[[object], object] | None = field.metadata["parse"]
            try:
                if parse is not None:
                    object.__setattr__(self, field.name, parse(getattr(self, field.name)))
            except ValueError as error:
                raise ConfigError(f"tiered option {field.name}: {error} ({field.metadata['doc']})") from error
        for name, choices in (("promote", _PROMOTE), ("write", _WRITE)):
            if getattr(self, name) not in choices:
                raise ConfigError(f"tiered option {name} = {getattr(self, name)!r}: expected {' or '.join(choices)}")


_PROMOTE = ("none", "first", "all_above")
_WRITE = ("all", "first", "first_then_background")
