"""From a subject's name to the subject: what exists, and under which name it stands in tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.environments import PEERS, peer_of
from benchmarks.subject import Subject
from benchmarks.subjects.controlled import Restore
from benchmarks.subjects.our_tree import OurTree
from benchmarks.subjects.ours import Pages, StoreAlone
from benchmarks.subjects.process import ProcessSubject
from benchmarks.subjects.raw import RawFiles

TITLES = {
    "raw": "plain files (the limit)",
    "ours": "**hicache_storage**, verified",
    "ours_8_objects": "**hicache_storage**, verified, 8 objects a page",
    "ours_restore": "**hicache_storage** controller, verified",
    "file_store": "hicache_storage file backend alone, unverified",
    "sglang": "SGLang HiCacheFile",
    "sglang_v2": "SGLang HiCacheFile, batch_exists_v2",
    "lmcache_fs": "LMCache fs",
    "lmcache_fs_native": "LMCache fs_native (C++)",
    "lmcache_resp": "LMCache resp (C++)",
    "lmcache_s3": "LMCache s3 (AWS CRT)",
    "vllm_fs": "vLLM fs tier",
    "bare_redis": "pipelined sockets (the limit)",
    "bare_http": "`http.client` in threads (the limit)",
    "boto3": "boto3 in threads",
    "bare_mooncake": "bare SDK (the limit)",
    "store_alone": "hicache_storage backend alone, unverified",
    "tensor_copy": "one `copy_` of the same bytes (the limit)",
    "ours_kernels": "**hicache_storage**, one head group",
    "ours_kernels_groups": "**hicache_storage**, several head groups",
    "ours_relayout": "**hicache_storage**",
    "sglang_cpu_copy": "SGLang `get_cpu_copy`, `load_cpu_copy`",
    "sglang_data_page": "SGLang `get_data_page`, `set_from_flat_data_page`",
    "our_tree": "**hicache_storage** RadixTree",
    "sglang_tree": "SGLang RadixCache",
    "sglang_tree_python": "SGLang UnifiedRadixCache, Python core",
    "sglang_tree_rust": "SGLang UnifiedRadixCache, Rust core",
    "sglang_file": "its own file backend",
    "sglang_bare": "bare zero-copy plug-in, unverified",
    "sglang_ours": "**hicache_storage** adapter, verified",
    "not_decorated": "not decorated",
    "checker_off": "decorated, checker off",
    "checker_on": "decorated, checker on",
    "scheduler_step": "a step of the reference engine",
    "pp_sync": "a tick of **hicache_storage**",
    "all_ranks": "one collective of all ranks",
}
"""Subject name -> how tables call it."""

OURS = ("ours", "ours_8_objects", "file_store")

PEER_COPIES = {
    "gather_scatter": ("sglang_cpu_copy",),
    "host_relayout": ("sglang_data_page",),
    "radix_tree": ("sglang_tree", "sglang_tree_python", "sglang_tree_rust"),
    "sglang_dynamic": ("sglang_bare", "sglang_ours", "sglang_file"),
}
"""Case -> the peers' subjects that are for it alone."""

PEERS_AT_SERVERS = {"redis": ("lmcache_resp",), "s3": ("lmcache_s3",), "mooncake": ()}
"""Backend -> the peers' subjects that need its server."""


def open_subject(name: str, tree: Path) -> Subject:
    """Return the subject of this name, a peer's in a process of its own.

    Args:
        tree: holds the link by which a peer imports the harness, and takes logs.
    """
    match name:
        case "raw":
            return RawFiles()
        case "ours":
            return Pages()
        case "ours_8_objects":
            return Pages(objects_per_page=8)
        case "ours_restore":
            return Restore()
        case "file_store":
            return StoreAlone()
        case "our_tree":
            return OurTree()
        case "tensor_copy" | "ours_kernels" | "ours_relayout":
            return _open_copies(name)
        case _:
            return peer_of(name).start(name, tree)


def _open_copies(name: str) -> Subject:
    from benchmarks.subjects.copies import DeviceCopies, HostRelayout, TensorCopy  # noqa: PLC0415 - loads torch

    kinds: dict[str, Callable[[], Subject]] = {
        "tensor_copy": TensorCopy,
        "ours_kernels": DeviceCopies,
        "ours_relayout": HostRelayout,
    }
    return kinds[name]()


class SubjectPool:
    """Subjects that stay open from case to case, because a peer takes seconds to start."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._open: dict[str, Subject] = {}

    def get(self, name: str) -> Subject:
        """Return the subject of this name, which nothing is prepared on; the pool closes it."""
        if name not in self._open:
            self._open[name] = open_subject(name, self._tree)
        return self._open[name]

    def discard(self, name: str) -> None:
        """End the process of this subject, if it has one; `get` starts it anew."""
        subject = self._open.pop(name, None)
        if isinstance(subject, ProcessSubject):
            subject.close()

    def close(self) -> None:
        """End every process."""
        for name in list(self._open):
            self.discard(name)


def open_process(name: str, tree: Path) -> ProcessSubject:
    """Return the subject of this name in a process of its own, this project's too: it may be killed."""
    if name == "ours":
        command = [sys.executable, "-m", "benchmarks.subjects.ours"]
        return ProcessSubject(command, cwd=tree, environ=dict(os.environ), log=tree / "ours.log")
    return peer_of(name).start(name, tree)


def subjects_of(peers: Sequence[str]) -> list[str]:
    """Return the subjects that *peers* bring for cases with objects in files."""
    others = {
        subject for group in (PEER_COPIES, PEERS_AT_SERVERS) for subjects in group.values() for subject in subjects
    }
    return [subject for name in peers for subject in PEERS[name].variants if subject not in others]


def copies_of(peers: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return those of the *wanted* subjects that *peers* bring."""
    return [subject for name in peers for subject in PEERS[name].variants if subject in wanted]
