"""A complete store in one short class, shared by threads and processes: what the kit itself is tried on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from hicache_storage.errors import StoreUnavailable
from hicache_storage.store import ObjectStore, check_key
from hicache_storage.testing.memory import fill_range
from hicache_storage.types import Capabilities, ObjectInfo, ReadableBuffer, WritableBuffer, WriteResult


class FolderStore(ObjectStore):
    """One file per object; its name is the quoted key. Files of unfinished writes have a name that no key gets."""

    name = "folder"
    options_type = Path
    capabilities = Capabilities(max_key_nbytes=80)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._closed = False

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        path = self._path("write", key)
        body = b"".join(parts)
        if path.exists() and path.stat().st_size == len(body):
            return WriteResult.ALREADY_THERE
        self._publish(path, body)
        return WriteResult.STORED

    def _publish(self, path: Path, body: bytes) -> None:
        unfinished = self.folder / f"unfinished-{uuid.uuid4().hex}"
        unfinished.write_bytes(body)
        unfinished.replace(path)

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        try:
            body = self._path("read", key).read_bytes()
        except FileNotFoundError:
            return False
        fill_range(body, offset, targets, object_nbytes, backend=self.name, key=key)
        return True

    def stat(self, key: str) -> ObjectInfo | None:
        try:
            found = self._path("stat", key).stat()
        except FileNotFoundError:
            return None
        return ObjectInfo(key, found.st_size, found.st_mtime)

    def delete(self, key: str) -> bool:
        try:
            self._path("delete", key).unlink()
        except FileNotFoundError:
            return False
        return True

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._check_open("list", "")
        for path in list(self.folder.iterdir()):
            key = unquote(path.name[1:])
            if path.name.startswith("=") and key.startswith(prefix) and (info := self.stat(key)):
                yield info

    def close(self) -> None:
        self._closed = True

    def _path(self, op: str, key: str) -> Path:
        encoded = check_key(key, self.capabilities, backend=self.name, op=op)
        self._check_open(op, key)
        return self.folder / f"={quote(encoded, safe='')}"

    def _check_open(self, op: str, key: str) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", backend=self.name, op=op, key=key)


class PublishesUnfinishedFiles(FolderStore):
    """Planted fault: the object's own file grows while it is written."""

    def _publish(self, path: Path, body: bytes) -> None:
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(body), 4096):
                file.write(body[start : start + 4096])


class ListsUnfinishedFiles(FolderStore):
    """Planted fault: what a killed writer left behind is listed for ever."""

    def _publish(self, path: Path, body: bytes) -> None:
        unfinished = path.with_name(path.name + ".unfinished")
        with unfinished.open("wb", buffering=0) as file:
            for start in range(0, len(body), 4096):
                file.write(body[start : start + 4096])
        unfinished.replace(path)


class ForgetsOnClose(FolderStore):
    """Planted fault: it says that it is durable, and is not."""

    def close(self) -> None:
        super().close()
        for path in self.folder.iterdir():
            path.unlink()


class RemembersWhatItSaw(FolderStore):
    """Planted fault: what another instance deletes is still there."""

    def stat(self, key: str) -> ObjectInfo | None:
        seen: dict[str, ObjectInfo | None] = self.__dict__.setdefault("seen", {})
        if seen.get(key) is None:
            seen[key] = super().stat(key)
        return seen[key]
