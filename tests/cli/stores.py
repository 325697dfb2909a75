"""Stores that fail as they are told; named on a command line as ``tests.cli.stores:Class``."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hicache_storage.backends.file import FileStore
from hicache_storage.backends.file.options import FileOptions
from hicache_storage.config import Secret, option
from hicache_storage.errors import Unsupported
from hicache_storage.testing.faults import Fault, FaultyStore, Kind, Op
from hicache_storage.types import Capabilities, ObjectInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOptions:
    path: Path = option(doc="folder of the file store behind it")
    script: str = option("", doc="faults as op:kind or op:kind:nth, comma-separated")
    password: Secret | None = option(None, doc="password, for nothing")


class ScriptedStore(FaultyStore):
    """A file store with faults."""

    name = "scripted"
    options_type = ScriptedOptions

    def __init__(self, options: ScriptedOptions) -> None:
        script = [_fault(*fault.split(":")) for fault in options.script.split(",") if fault]
        super().__init__(FileStore(FileOptions(path=options.path)), script)


class WaitingStore(ScriptedStore):
    """Says ``waiting`` on stderr when it is to list its keys, and never answers."""

    name = "waiting"

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        print("waiting", file=sys.stderr, flush=True)
        signal.pause()
        raise AssertionError("the signal was to raise")


class LoggingStore(ScriptedStore):
    """Logs that it lists."""

    name = "logging"

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        log.debug("store.list")
        return super().list_keys(prefix)


class UnlistableStore(ScriptedStore):
    """A file store that cannot list."""

    name = "unlistable"

    def __init__(self, options: ScriptedOptions) -> None:
        super().__init__(options)
        self.capabilities = Capabilities(listing=False)

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        raise Unsupported("this store cannot list", backend=self.name, op="list")


def _fault(op: str, kind: str, nth: str = "") -> Fault:
    return Fault(cast("Op", op), cast("Kind", kind), nth=int(nth) if nth else None)
