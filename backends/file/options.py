"""The file backend's options."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hicache_storage.config import cache_folder, option, parse_nbytes, whole_number
from hicache_storage.errors import ConfigError

_MAX_IO_THREADS = 256


def parse_count(value: object) -> int:
    """Return a whole number, ``>= 0``, from ``16`` or ``"16"``."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError("expected a whole number, 0 or more")
    return number


def parse_ratio(value: object) -> float:
    """Return a share in ``(0, 1]`` from ``0.9`` or ``"0.9"``."""
    ratio = _parse_float(value)
    if not 0 < ratio <= 1:
        raise ValueError("expected a share above 0 and at most 1, such as 0.9")
    return ratio


def parse_age_s(value: object) -> float:
    """Return a number of seconds, ``>= 0``, from ``3600`` or ``"3600"``."""
    age_s = _parse_float(value)
    if not age_s >= 0:
        raise ValueError("expected seconds, 0 or more")
    return age_s


def parse_prefixes(value: object) -> tuple[str, ...]:
    """Return the beginnings of keys from ``["a", "b"]`` or ``"a,b"``; ``[]`` and ``""`` are none."""
    parts = value.split(",") if isinstance(value, str) and value else value or ()
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) and part for part in parts):
        raise ValueError("expected the beginnings of keys, none of them empty, such as namespace_")
    for part in parts:
        part.encode()  # what cannot be encoded is no part of a key, and a ValueError
    return tuple(parts)


def _parse_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a number")  # noqa: TRY004 - config.resolve turns ValueError into ConfigError
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Options of `FileStore`."""

    path: Path = option(
        cache_folder() / "store",
        doc="folder of the store; created if it is missing, unless create is false",
        aliases=("file_storage_path",),
        env=("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",),
    )
    capacity_nbytes: int | None = option(
        None,
        doc="most disk space that the folder's files take, all instances and processes together; none = no limit",
        parse=parse_nbytes,
        aliases=("max_size",),
    )
    eviction_ratio: float = option(
        0.9, doc="share of the capacity down to which an eviction makes room", parse=parse_ratio
    )
    keep_prefixes: tuple[str, ...] = option(
        ("namespace_",),
        doc="beginnings of keys, separated by commas, whose objects are never evicted; they count all the same",
        parse=parse_prefixes,
    )
    io_threads: int = option(
        min(16, 2 * len(os.sched_getaffinity(0))),
        doc="most threads that move data at once",
        parse=whole_number(1, _MAX_IO_THREADS),
    )
    fsync: Literal["none", "data", "full"] = option(
        "none",
        doc="what a write waits for: none = the page cache, data = the object's bytes are on the device, "
        "full = its directory entry too",
    )
    direct: bool = option(False, doc="bypass the page cache with O_DIRECT", aliases=("o_direct",))  # noqa: FBT003 - a default
    quarantine_count: int = option(16, doc="damaged objects kept aside for a post-mortem", parse=parse_count)
    orphan_age_s: float = option(
        3600.0, doc="seconds after which a temporary file of another host is taken for abandoned", parse=parse_age_s
    )
    create: bool = option(
        True,  # noqa: FBT003 - a default
        doc="make the folder if it is missing; false = only look: the folder must be there, nothing in it is made, "
        "changed or evicted, and writes are refused",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            parse, value = field.metadata["parse"], getattr(self, field.name)
            if parse is None or (value is None and field.default is None):
                continue
            try:
                object.__setattr__(self, field.name, parse(value))
            except ValueError as error:
                reason = f"file option {field.name} = {value!r}: {error} ({field.metadata['doc']})"
                raise ConfigError(reason) from error
        if self.fsync not in ("none", "data", "full"):
            reason = f"file option fsync = {self.fsync!r}: expected none, data or full"
            raise ConfigError(reason)
