"""Matching, inserting and evicting prompts in a radix tree: long prompts, and trees of 100,000 pages.

Eight prompts of 200,000 tokens share their first half. In the other trees prompts of 4,096 tokens share their
first half with their group, and there are as many as fill 100,000 pages. Nothing moves but ids.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.rows import Row
from benchmarks.runner import Settings, WrongBytes, percentiles, say
from benchmarks.subject import Subject, SubjectFailed
from benchmarks.subjects.factory import PEER_COPIES, copies_of
from benchmarks.subjects.trees import Prompts

_OPERATIONS = ("insert", "match", "evict")


def radix_tree(settings: Settings) -> list[Row]:
    return [row for workload in _workloads() for row in _measured(settings, _sized(settings, workload))]


def _workloads() -> list[Prompts]:
    long = [
        Prompts(
            folder="",
            objects=8,
            batch=8192 // page_tokens,
            page_tokens=page_tokens,
            prompt_tokens=200_000 // 64 * 64,
            shared_tokens=100_000 // 64 * 64,
            groups=1,
        )
        for page_tokens in (1, 16, 64)
    ]
    many = [
        Prompts(
            folder="",
            objects=(100_000 - 32 * 2048 // page_tokens) * page_tokens // 2048,
            batch=512,
            page_tokens=page_tokens,
            prompt_tokens=4096,
            shared_tokens=2048,
            groups=32,
        )
        for page_tokens in (16, 64)
    ]
    return long + many


def _sized(settings: Settings, workload: Prompts) -> Prompts:
    if not settings.small:
        return workload
    return replace(workload, objects=4, batch=2, prompt_tokens=256, shared_tokens=128, groups=2)


def _measured(settings: Settings, workload: Prompts) -> list[Row]:
    names = ["our_tree", *copies_of(settings.peers, PEER_COPIES["radix_tree"])]
    with ExitStack() as stack:
        subjects = {}
        for name in names:
            try:
                subjects[name] = settings.subjects.get(name)
                subjects[name].prepare(workload)
            except SubjectFailed as failure:
                say(f"{name} is left out: {failure}")
                settings.subjects.discard(name)
                subjects.pop(name, None)
                continue
            stack.callback(subjects[name].release)
        seconds = _rounds(settings, subjects, workload)
        return [row for operation in _OPERATIONS for row in _rows(settings, subjects, workload, operation, seconds)]


def _rounds(settings: Settings, subjects: dict[str, Subject], workload: Prompts) -> dict[tuple[str, str], list[float]]:
    """Fill, match and empty each tree in turn, once to warm up and then timed; return seconds."""
    names = list(subjects)
    seconds: dict[tuple[str, str], list[float]] = {(op, name): [] for op in _OPERATIONS for name in names}
    for number in range(settings.rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            for operation in _OPERATIONS:
                taken = subjects[name].run(operation)
                if number:
                    seconds[operation, name].append(taken)
                elif operation == "insert" and (wrong := subjects[name].wrong_objects()):
                    raise WrongBytes(f"radix_tree: {name} does not match {wrong} of the prompts that it was given")
        say(f"radix_tree {workload.object_nbytes} B x{workload.objects}: round {number}/{settings.rounds}", end="\r")
    say("")
    return seconds


def _rows(
    settings: Settings,
    subjects: dict[str, Subject],
    workload: Prompts,
    operation: str,
    seconds: dict[tuple[str, str], list[float]],
) -> list[Row]:
    """Return a row per subject; shares are of the fastest peer, of this project's tree where there is none."""
    medians = {name: statistics.median(seconds[operation, name]) for name in subjects}
    peers = {name: median for name, median in medians.items() if name != "our_tree"} or medians
    limit = min(peers, key=peers.__getitem__)
    rows = []
    for name, subject in subjects.items():
        own = seconds[operation, name]
        p20, p50, p80 = percentiles(own)
        shares = [theirs / mine for theirs, mine in zip(seconds[operation, limit], own, strict=True)]
        rows.append(
            Row(
                case="radix_tree",
                operation=f"{operation}, pages of {workload.page_tokens}",
                subject=name,
                version=subject.version,
                object_nbytes=workload.object_nbytes,
                objects=workload.objects,
                batch=workload.batch,
                threads=1,
                rounds=len(own),
                p20_s=p20,
                p50_s=p50,
                p80_s=p80,
                best_s=min(own),
                gb_s=None,
                us_per_object=p50 / workload.objects * 1e6,
                share_of_raw=statistics.median(shares),
                raw=limit,
                page_cache=subject.page_cache,
                calls=subject.calls[operation],
                provenance=settings.provenance,
            )
        )
    return rows
