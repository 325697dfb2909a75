"""How many pages a host tier gets: from bytes, from the device's pages, or from the memory this process may use.

Integers in, integers out; `read_host_memory` alone looks at the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from hicache_storage.errors import ConfigError

_RESERVE_NBYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory of this process's machine or container.

    Attributes:
        allowed_nbytes: what it may use in all.
        available_nbytes: what it could still use now; file cache that can be dropped counts as available.
        source: what sets `allowed_nbytes`, for messages.
    """

    allowed_nbytes: int
    available_nbytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSize:
    """How large a host tier shall be. Exactly one of the first three is set.

    Attributes:
        nbytes: that many bytes, less what is left of the last page.
        ratio: host pages per device page.
        memory_fraction: share of the memory that the machine or its cgroup allows, in ``(0, 1]``, for all ranks
            on this machine together. Of what is allowed, not of what is free: so every rank gets the same.
        reserve_nbytes: available memory that stays free whichever is set.
        ranks: how many ranks on this machine share the memory, each with a tier like this one.
    """

    nbytes: int | None = None
    ratio: float | None = None
    memory_fraction: float | None = None
    reserve_nbytes: int = _RESERVE_NBYTES
    ranks: int = 1

    def __post_init__(self) -> None:
        given = {"nbytes": self.nbytes, "ratio": self.ratio, "memory_fraction": self.memory_fraction}
        named = {name: value for name, value in given.items() if value is not None}
        if len(named) != 1:
            raise ConfigError(f"the host tier's size needs exactly one of {', '.join(given)}; given: {named or 'none'}")
        name, value = named.popitem()
        if not 0 < value < float("inf") or (name == "memory_fraction" and value > 1):
            raise ConfigError(f"the host tier's {name} = {value} is not {_RIGHT[name]}")
        if self.reserve_nbytes < 0 or self.ranks < 1:
            raise ConfigError(f"reserve_nbytes = {self.reserve_nbytes} is below 0 or ranks = {self.ranks} below 1")

    def num_pages(self, page_nbytes: int, *, device_pages: int, memory: HostMemory) -> int:
        """Return the pages of one rank's tier.

        Args:
            page_nbytes: bytes of one host page, padding included.
            device_pages: pages of the rank's device tier.

        Raises:
            ConfigError: not one page comes out, or the tiers of all ranks do not fit into the memory.
        """
        count, asked = self._asked(page_nbytes, device_pages, memory)
        if count < 1:
            raise ConfigError(f"{asked} is less than one host page of {page_nbytes} bytes")
        # The tiers of ranks that were faster are no longer available, and must not be counted again.
        share = (memory.allowed_nbytes - self.reserve_nbytes) // self.ranks
        most = max(0, min(share, memory.available_nbytes - self.reserve_nbytes))
        if count * page_nbytes > most:
            raise ConfigError(
                f"{asked}: {count} host pages of {page_nbytes} bytes on each of {self.ranks} rank(s) are "
                f"{count * page_nbytes * self.ranks} bytes; {memory.available_nbytes} of {memory.allowed_nbytes} "
                f"({memory.source}) are available, {self.reserve_nbytes} reserved: at most {most // page_nbytes} pages fit"
            )
        return count

    def _asked(self, page_nbytes: int, device_pages: int, memory: HostMemory) -> tuple[int, str]:
        if self.nbytes is not None:
            return self.nbytes // page_nbytes, f"nbytes = {self.nbytes}"
        if self.ratio is not None:
            return int(Fraction(str(self.ratio)) * device_pages), f"ratio = {self.ratio} of {device_pages} device pages"
        share = int(Fraction(str(self.memory_fraction)) * memory.allowed_nbytes) // self.ranks
        asked = f"memory_fraction = {self.memory_fraction} of {memory.allowed_nbytes} bytes ({memory.source})"
        return share // page_nbytes, asked


_RIGHT = {
    "nbytes": "a number of bytes above 0",
    "ratio": "a number above 0",
    "memory_fraction": "above 0 and at most 1",
}


def capacity_tokens(nbytes: int, page_nbytes: int, page_tokens: int) -> int:
    """Return how many tokens *nbytes* hold in whole pages."""
    return nbytes // page_nbytes * page_tokens


def common_capacity_tokens(stage_tokens: Sequence[int], page_tokens: int) -> int:
    """Return the capacity that every pipeline stage uses: the smallest, in whole pages.

    Stages with equal bytes and unequal layers have room for different numbers of tokens. If each used its own, the
    same request would find room on one stage and none on the next. Source: field fault F28.

    Raises:
        ConfigError: there is no stage, or the smallest has no room for one page.
    """
    least = min(stage_tokens, default=0) // page_tokens * page_tokens
    if least <= 0:
        raise ConfigError(f"stages with room for {list(stage_tokens)} tokens have no page of {page_tokens} in common")
    return least


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Return what the machine and every cgroup above this process allow; the least counts.

    Args:
        root: where ``proc`` and ``sys`` are mounted.

    Raises:
        ConfigError: ``/proc/meminfo`` cannot be read.
    """
    meminfo = _fields(root / "proc/meminfo")
    try:
        machine = HostMemory(meminfo["MemTotal"] * 1024, meminfo["MemAvailable"] * 1024, "the machine's memory")
    except KeyError as error:
        raise ConfigError(f"{root / 'proc/meminfo'} does not say {error}; give the host tier's size in bytes") from None
    limits = [machine, *_cgroup_limits(root)]
    tightest = min(limits, key=lambda limit: limit.allowed_nbytes)
    available = min(limit.available_nbytes for limit in limits)
    return HostMemory(tightest.allowed_nbytes, max(0, available), tightest.source)


def _cgroup_limits(root: Path) -> Iterator[HostMemory]:
    """Yield the limit of each memory cgroup from this process's own up to the mount, v2 and v1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside a container the path may be that of the host, which is not mounted; the mount itself always counts.
        group = mount / path.strip("/")
        for folder in (group, *group.parents):
            limit = _cgroup_limit(folder, *names)
            if limit is not None:
                yield limit
            if folder == mount:
                break


def _cgroup_limit(folder: Path, limit: str, usage: str, droppable: str) -> HostMemory | None:
    allowed, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not allowed.isdecimal() or not used.isdecimal():
        return None
    in_use = int(used) - _fields(folder / "memory.stat").get(droppable, 0)
    return HostMemory(int(allowed), int(allowed) - max(0, in_use), f"{folder.name}/{limit}")


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file of lines ``name 123`` or ``name: 123 kB``, as they stand."""
    words = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {line[0]: int(line[1]) for line in words if len(line) >= 2 and line[1].isdecimal()}


def _text(path: Path) -> str:
    """Return the file's text; none if it is not there or may not be read, as in many containers."""
    try:
        return path.read_text()
    except OSError:
        return ""
