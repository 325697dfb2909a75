"""From a subject's name to the subject: what exists, and under which name it stands in tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.environments import PEERS, peer_of
from benchmarks.subject import Subject
from benchmarks.subjects.ours import Pages, StoreAlone
from benchmarks.subjects.process import ProcessSubject
from benchmarks.subjects.raw import RawFiles

TITLES = {
    "raw": "plain files (the limit)",
    "ours": "**hicache_storage**, verified",
    "ours_8_objects": "**hicache_storage**, verified, 8 objects a page",
    "file_store": "hicache_storage file backend alone, unverified",
    "sglang": "SGLang HiCacheFile",
    "sglang_v2": "SGLang HiCacheFile, batch_exists_v2",
    "lmcache_fs": "LMCache fs",
    "lmcache_fs_native": "LMCache fs_native (C++)",
    "vllm_fs": "vLLM fs tier",
    "bare_redis": "pipelined sockets (the limit)",
    "bare_http": "`http.client` in threads (the limit)",
    "boto3": "boto3 in threads",
    "bare_mooncake": "bare SDK (the limit)",
    "store_alone": "hicache_storage backend alone, unverified",
}
"""Subject name -> how tables call it."""

OURS = ("ours", "ours_8_objects", "file_store")


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
        case "file_store":
            return StoreAlone()
        case _:
            return peer_of(name).start(name, tree)


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
    """Return the subjects that *peers* bring."""
    return [subject for name in peers for subject in PEERS[name].variants]
