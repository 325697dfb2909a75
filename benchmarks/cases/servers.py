"""Each backend with a server against the least that a client of the same server can do.

Objects of 2 MiB and 256 KiB as in `benchmarks.cases.transfer`, in calls of 64. A ranged read takes the second half of every
object; for this project that is what a rank with half of the layers reads of another topology's pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.rows import Row
from benchmarks.runner import Settings, measure
from benchmarks.servers import CUTS, served
from benchmarks.subjects.factory import PEERS_AT_SERVERS, copies_of
from benchmarks.workload import Workload

OPERATIONS = ("write", "read", "ranged")
_LAYERS_AND_OBJECTS = ((32, 64), (4, 256))
BREAK_EVEN = (("file", 2), ("redis", 2), ("s3", 8), ("mooncake", 2))
"""Backend and threads."""


def redis_transfer(settings: Settings) -> list[Row]:
    return _transfer(settings, "redis", ["bare_redis"], (1, 2))


def s3_transfer(settings: Settings) -> list[Row]:
    return _transfer(settings, "s3", ["bare_http", "boto3"], (8,))


def mooncake_transfer(settings: Settings) -> list[Row]:
    return _transfer(settings, "mooncake", ["bare_mooncake"], (2,))


def break_even(settings: Settings) -> list[Row]:
    """Compare pages of 2 MiB that are cut into 1, 4, 8 and 32 objects; the backend's name is part of the operation."""
    rows: list[Row] = []
    for backend, threads in BREAK_EVEN:
        with served(backend, settings.scratch) as pool:
            workload = Workload(folder="", objects=64, threads=threads)
            cuts = [f"cut_{cells}" for cells in CUTS]
            here = replace(settings, subjects=pool)
            for operation in ("read", "exists"):
                measured = measure(here, "break_even", operation, workload, cuts, raw=cuts[0])
                rows += [replace(row, operation=f"{backend} {operation}") for row in measured]
    return rows


def _transfer(settings: Settings, backend: str, clients: Sequence[str], thread_counts: Sequence[int]) -> list[Row]:
    """Return the rows of one backend; the first of *clients* is the limit. Each size has a server of its own.

    Peers read whole objects only, so they have no ranged reads.
    """
    rows: list[Row] = []
    peers = copies_of(settings.peers, PEERS_AT_SERVERS[backend])
    sizes = _LAYERS_AND_OBJECTS[:1] if settings.small else _LAYERS_AND_OBJECTS
    for layers, objects in sizes:
        with served(backend, settings.scratch) as pool:
            here = replace(settings, subjects=pool)
            for operation in OPERATIONS:
                for threads in thread_counts:
                    workload = Workload(folder="", num_layers=layers, objects=objects, threads=threads)
                    subjects = [*clients, "ours", "store_alone", *(peers if operation != "ranged" else ())]
                    rows += measure(here, f"{backend}_transfer", operation, workload, subjects, raw=clients[0])
    return rows
