"""A store whose author left the errors of the system as they are; named as ``tests.cli.foreign_stores:ForeignStore``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache_storage.backends.file import FileStore
from hicache_storage.backends.file.options import FileOptions
from hicache_storage.config import option
from hicache_storage.errors import CorruptObject
from hicache_storage.types import ObjectInfo, Outcome, ReadableBuffer, WritableBuffer, WriteResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignOptions:
    path: Path = option(doc="folder of the file store behind it")
    fails: str = option("", doc="method:exception, comma-separated")


KINDS: dict[str, Callable[[], Exception]] = {
    "TimeoutError": lambda: TimeoutError("timed out"),
    "BrokenPipeError": lambda: BrokenPipeError(32, "Broken pipe"),
    "OSError": lambda: OSError(28, "No space left on device"),
    "CorruptObject": lambda: CorruptObject("other bytes"),
}
"""What can be raised; the second and the third could be trouble with the output of the command line."""


class ForeignStore(FileStore):
    """A file store that raises what is told."""

    name = "foreign"
    options_type = ForeignOptions

    def __init__(self, options: ForeignOptions) -> None:
        self._fails = dict(pair.split(":") for pair in options.fails.split(",") if pair)
        self._fail("open")
        super().__init__(FileOptions(path=options.path))

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        self._fail("write")
        return super().write(key, parts)

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        self._fail("read")
        return super().read_into(key, offset, targets, object_nbytes=object_nbytes)

    def exists_many(self, keys: Sequence[str]) -> list[Outcome]:
        self._fail("exists")
        return super().exists_many(keys)

    def stat(self, key: str) -> ObjectInfo | None:
        self._fail("stat")
        return super().stat(key)

    def delete(self, key: str) -> bool:
        self._fail("delete")
        return super().delete(key)

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._fail("list")
        return super().list_keys(prefix)

    def close(self) -> None:
        super().close()
        self._fail("close")

    def _fail(self, method: str) -> None:
        if method in self._fails:
            error = KINDS[self._fails[method]]()
            raise error
