"""The demo's order of events: prefill, cut, write, then read in every reader topology."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hicache_storage.cli import exit_codes
from hicache_storage.cli.demo.job import (
    CacheSpec,
    PrefillJob,
    PrefillResult,
    ReadJob,
    ReadResult,
    Region,
    StoreSpec,
    WriteJob,
    WriteResult,
)
from hicache_storage.cli.demo.processes import Launch, run_children
from hicache_storage.cli.output import counted
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Topology, object_key, page_hashes
from hicache_storage.registry import ResolvedStore
from hicache_storage.types import Outcome

if TYPE_CHECKING:  # it loads tokenizers
    from hicache_storage.cli.demo.prompt import Prompt

_PACKAGE = "hicache_storage.cli.demo"


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that the steps share.

    Attributes:
        folder: the model's safetensors folder.
        timeout_s: how long one step may take.
        say: shows progress.
    """

    folder: Path
    store: StoreSpec
    cache: CacheSpec
    prompt: Prompt
    writer: Topology
    max_new_tokens: int
    timeout_s: float
    say: Callable[[str], None]

    @property
    def hashes(self) -> list[str]:
        return page_hashes(self.prompt.tokens[: self.prompt.prefix_tokens], page_tokens=self.prompt.page_tokens)

    @property
    def object_keys(self) -> list[str]:
        """Keys of every object of the prompt's pages."""
        digest, chunks = self.cache.namespace.digest, self.cache.grid.chunks(self.cache.shape)
        return [object_key(page_hash, digest, chunk.suffix) for page_hash in self.hashes for chunk in chunks]


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store held before and what was added; in objects of the prompt's pages."""

    objects: int
    already_there: int
    stored: int

    @property
    def sentence(self) -> str:
        if self.already_there == self.objects:
            return (
                f"store was warm: {self.objects} of {self.objects} objects already there, nothing to compute or write"
            )
        if self.already_there:
            return f"store was partly warm: {self.already_there} of {self.objects} objects already there"
        return f"store was cold: none of {self.objects} objects there"


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """One reader topology's outcome, over all its ranks.

    Attributes:
        objects: objects read, counted for each rank that reads a part of it.
        nbytes: bytes of the host pages filled and moved into the caches.
        restore_gb_s: these bytes by the time of the slowest rank; None if nothing was restored.
        failure: why a page was not read, empty if none failed.
        failure_status: the exit status that stands for it.
        quarantined: damaged objects that this reader met and took out of use.
        text: the continuation's token ids, with the store.
    """

    reader: str
    pages_hit: int
    objects: int
    nbytes: int
    restore_gb_s: float | None
    ttft_cold_s: float
    ttft_warm_s: float
    same_text: bool
    failure: str
    failure_status: int
    quarantined: int
    text: list[int]


def provide(scene: Scene, resolved: ResolvedStore, *, cold: bool) -> Stored:
    """Have the prompt's pages in the store, as the writer topology's ranks store them.

    Nothing is computed or written if all of it is there.

    Args:
        cold: first delete the objects of these pages, and no others.

    Raises:
        StoreError: the store does not answer, or an object could not be stored.
        ConfigError: the store lives in one process only.
    """
    keys = scene.object_keys
    with resolved.open() as store:
        if not store.capabilities.shared:
            raise ConfigError(f"the demo's processes cannot share a {resolved.backend} store: it ends with its process")
        if cold:
            scene.say(f"store: deleted {_successes(store.delete_many(keys))} objects of this prompt")
        stored = Stored(objects=len(keys), already_there=_successes(store.exists_many(keys)), stored=0)
    scene.say(stored.sentence)
    if stored.already_there == stored.objects:
        return stored
    return replace(stored, stored=_fill(scene))


def _successes(outcomes: list[Outcome]) -> int:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return sum(map(bool, outcomes))


def _fill(scene: Scene) -> int:
    """Compute the prompt's KV once and have each elected rank of the writer topology store its shard.

    The KV goes from process to process through a file without a name: nothing is left of it
    however the demo ends.

    Returns:
        Objects stored; others were there already.
    """
    regions = _regions(scene)
    with tempfile.TemporaryFile() as handover:
        handover.truncate(sum(region.nbytes for region in regions))
        _prefill(scene, handover.fileno(), regions)
        return _write(scene, handover.fileno(), regions)


def _regions(scene: Scene) -> list[Region]:
    """Return where each elected writer's host pages lie in the hand-over file, one after the other."""
    regions: list[Region] = []
    offset = 0
    shape = scene.cache.shape
    for tp_rank, pp_rank in scene.writer.ranks():
        if not scene.writer.is_writer(shape, tp_rank=tp_rank):
            continue
        layout = scene.cache.layout(scene.writer.shard(shape, tp_rank=tp_rank, pp_rank=pp_rank))
        nbytes = layout.page_nbytes * scene.prompt.num_pages
        regions.append(Region(tp_rank, pp_rank, offset, nbytes))
        offset += nbytes
    return regions


def _prefill(scene: Scene, handover: int, regions: list[Region]) -> None:
    job = PrefillJob(
        folder=str(scene.folder),
        cache=scene.cache,
        writer=scene.writer.name,
        tokens=scene.prompt.tokens,
        num_pages=scene.prompt.num_pages,
        handover=handover,
        regions=regions,
    )
    launch = Launch(f"{_PACKAGE}.prefill", job, "prefill", handover)
    results = run_children([launch], PrefillResult, step="prefill", timeout_s=scene.timeout_s, on_progress=scene.say)
    prompt, result = scene.prompt, results[0]
    scene.say(
        f"prefill: {prompt.prefix_tokens} + {len(prompt.tokens) - prompt.prefix_tokens} tokens in "
        f"{result.prefill_s:.2f} s, cut into {len(regions)} shards of {scene.writer.name} in {result.cut_s:.2f} s"
    )


def _write(scene: Scene, handover: int, regions: list[Region]) -> int:
    launches = []
    for region in regions:
        job = WriteJob(
            store=scene.store,
            cache=scene.cache,
            writer=scene.writer.name,
            page_hashes=scene.hashes,
            handover=handover,
            region=region,
        )
        label = f"writer tp{region.tp_rank} pp{region.pp_rank}"
        launches.append(Launch(f"{_PACKAGE}.writer", job, label, handover))
    results = run_children(launches, WriteResult, step="write", timeout_s=scene.timeout_s, on_progress=scene.say)
    stored, nbytes = sum(one.objects_stored for one in results), sum(one.nbytes_stored for one in results)
    slowest_s = max(one.write_s for one in results)
    scene.say(
        f"write: {len(results)} ranks of {scene.writer.name} stored {stored} objects, {nbytes / 1e6:.1f} MB, "
        f"each from a process of its own, the slowest in {slowest_s:.2f} s"
    )
    return stored


def read_all(scene: Scene, readers: list[Topology]) -> list[ReaderRow]:
    """Continue the prompt in each of *readers*, one after the other, and count the objects that a damage cost.

    Raises:
        HiCacheError: a reader failed altogether, or the store does not answer.
    """
    rows: list[ReaderRow] = []
    gone = 0
    for reader in readers:
        row = read_back(scene, reader)
        if row.failure_status == exit_codes.CORRUPT:
            # Counted in the store, where each is one object: several ranks read parts of the same.
            gone_before, gone = gone, _count_gone(scene)
            row = replace(row, quarantined=gone - gone_before)
            scene.say(f"read {reader.name}: took {counted(row.quarantined, 'damaged object')} out of use")
        rows.append(row)
    return rows


def _count_gone(scene: Scene) -> int:
    with scene.store.open() as store:
        return len(scene.object_keys) - _successes(store.exists_many(scene.object_keys))


def read_back(scene: Scene, reader: Topology) -> ReaderRow:
    """Continue the prompt in *reader*, one fresh process for each rank, without the store and with it."""
    with tempfile.TemporaryFile() as rendezvous:
        launches = []
        for tp_rank, pp_rank in reader.ranks():
            job = _read_job(scene, reader, tp_rank, pp_rank, rendezvous.fileno())
            label = f"reader {reader.name} tp{tp_rank} pp{pp_rank}"
            launches.append(Launch(f"{_PACKAGE}.reader", job, label, rendezvous.fileno()))
        results = run_children(
            launches, ReadResult, step=f"read {reader.name}", timeout_s=scene.timeout_s, on_progress=scene.say
        )
    nbytes, slowest_s = sum(one.nbytes for one in results), max(one.restore_s for one in results)
    return ReaderRow(
        reader=reader.name,
        pages_hit=results[0].pages_hit,
        objects=sum(one.objects for one in results),
        nbytes=nbytes,
        restore_gb_s=nbytes / slowest_s / 1e9 if nbytes else None,
        ttft_cold_s=max(one.ttft_cold_s for one in results),
        ttft_warm_s=max(one.ttft_warm_s for one in results),
        same_text=all(one.warm == one.cold for one in results),
        failure=next((one.failure for one in results if one.failure), ""),
        failure_status=max(one.failure_status for one in results),
        quarantined=0,
        text=results[0].warm,
    )


def _read_job(scene: Scene, reader: Topology, tp_rank: int, pp_rank: int, rendezvous: int) -> ReadJob:
    return ReadJob(
        store=scene.store,
        cache=scene.cache,
        folder=str(scene.folder),
        reader=reader.name,
        tp_rank=tp_rank,
        pp_rank=pp_rank,
        tokens=scene.prompt.tokens,
        num_pages=scene.prompt.num_pages,
        page_hashes=scene.hashes,
        max_new_tokens=scene.max_new_tokens,
        rendezvous=rendezvous,
        timeout_s=scene.timeout_s,
    )
