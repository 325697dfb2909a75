# ruff: noqa: ARG002 - hooks are given the store; these need only its folder
"""A store of your own in one file: the store, its proof, its use.

python examples/01_your_own_backend.py          use it, then run all laws against it
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path

import pytest

from hicache_storage import (
    Capabilities,
    CorruptObject,
    ObjectInfo,
    ObjectStore,
    RangeError,
    StoreFull,
    StoreUnavailable,
    WriteResult,
    open_store,
)
from hicache_storage.config import option
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.layout import Grid, KVShape, Namespace, ShardLayout, Topology, page_hashes
from hicache_storage.store import check_key
from hicache_storage.testing.contract import StoreContract
from hicache_storage.testing.model import store_machine
from hicache_storage.types import ReadableBuffer, WritableBuffer, nbytes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions:
    """What an operator can set."""

    path: Path = option(doc="an existing folder for the objects")


class FolderStore(ObjectStore):
    """One file per object; its name is the key in base64."""

    name = "folder"
    options_type = FolderOptions
    capabilities = Capabilities(max_key_nbytes=180)

    def __init__(self, options: FolderOptions) -> None:
        self._folder = options.path
        self._closed = False

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        there = self.stat(key)
        if there is not None and there.nbytes == sum(map(nbytes_of, parts)):
            return WriteResult.ALREADY_THERE
        with self._file("write", key) as path:
            draft = path.with_name(f".{uuid.uuid4().hex}")
            try:
                with draft.open("wb") as file:
                    file.writelines(parts)
                draft.replace(path)  # the one step in which the object appears, whole
            finally:
                draft.unlink(missing_ok=True)
        return WriteResult.STORED

    def read_into(
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool:
        try:
            with self._file("read", key) as path, path.open("rb") as file:
                nbytes = os.fstat(file.fileno()).st_size
                if object_nbytes not in {None, nbytes}:
                    raise CorruptObject(f"{nbytes} bytes, not {object_nbytes}", backend=self.name, op="read", key=key)
                if not 0 <= offset <= offset + sum(map(nbytes_of, targets)) <= nbytes:
                    raise RangeError(f"the object has {nbytes} bytes", backend=self.name, op="read", key=key)
                file.seek(offset)
                for target in targets:
                    file.readinto(target)
        except FileNotFoundError:
            return False
        return True

    def stat(self, key: str) -> ObjectInfo | None:
        try:
            with self._file("stat", key) as path:
                found = path.stat()
        except FileNotFoundError:
            return None
        return ObjectInfo(key, found.st_size, found.st_mtime)

    def delete(self, key: str) -> bool:
        try:
            with self._file("delete", key) as path:
                path.unlink()
        except FileNotFoundError:
            return False
        return True

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._check_open("list")
        for path in list(self._folder.iterdir()):
            key = "" if path.name[0] == "." else urlsafe_b64decode(path.name).decode()
            if key and key.startswith(prefix) and (info := self.stat(key)):
                yield info

    def close(self) -> None:
        self._closed = True

    @contextmanager
    def _file(self, op: str, key: str) -> Iterator[Path]:
        """Give the object's path. A missing file leaves the block as it is, any other trouble as our error."""
        self._check_open(op)
        encoded = check_key(key, self.capabilities, backend=self.name, op=op)
        try:
            yield self._folder / urlsafe_b64encode(encoded).decode()
        except FileNotFoundError:
            raise
        except OSError as error:
            meaning = StoreFull if error.errno == ENOSPC else StoreUnavailable
            raise meaning(str(error), backend=self.name, op=op, key=key) from error

    def _check_open(self, op: str) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", backend=self.name, op=op)


class TestFolderStore(StoreContract):
    """Every law; the hooks look at the files past the store."""

    bounded = False
    folder: Path

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        self.folder = tmp_path
        with FolderStore(FolderOptions(path=tmp_path)) as store:
            yield store

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        (self.folder / ".planted").write_bytes(body)
        (self.folder / ".planted").replace(self.folder / urlsafe_b64encode(key.encode()).decode())

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        path = self.folder / urlsafe_b64encode(key.encode()).decode()
        return path.read_bytes() if path.exists() else None

    def second(self, store: ObjectStore) -> ObjectStore:
        return FolderStore(FolderOptions(path=self.folder))

    def reopen(self, store: ObjectStore) -> ObjectStore:
        return self.second(store)

    def opening_code(self, store: ObjectStore) -> str:
        here = Path(__file__)
        target = f"{here.stem}:FolderStore"
        return (
            f"import sys; sys.path.insert(0, {str(here.parent)!r})\n"
            "from hicache_storage import open_store\n"
            f"store = open_store({target!r}, {{'path': {str(self.folder)!r}}})\n"
        )


@contextmanager
def new_store() -> Iterator[ObjectStore]:
    """Give an empty store for one example of the state machine."""
    with tempfile.TemporaryDirectory() as folder, FolderStore(FolderOptions(path=Path(folder))) as store:
        yield store


TestFolderModel = store_machine(new_store)


def use_it(folder: Path) -> None:
    """Store two pages of a small model, read them back and compare."""
    shape = KVShape.mha(num_layers=4, num_kv_heads=2, head_dim=8, dtype="float16", page_tokens=16)
    layout = ShardLayout(
        shape, Grid(layer_partition=2, head_partition=1), Topology().shard(shape, tp_rank=0, pp_rank=0)
    )
    hashes = page_hashes(range(32), page_tokens=16)
    written = [os.urandom(layout.page_nbytes) for _ in hashes]
    read = [bytearray(layout.page_nbytes) for _ in hashes]

    # An operator types the same: --hicache-storage-backend module:Class --hicache-storage-backend-extra-config '{...}'
    with open_store("__main__:FolderStore", {"path": str(folder), "middleware": {"retry_attempts": 3}}) as store:
        pages = PageStore(store, Namespace.of(model_id="example", shape=shape, grid=layout.grid), layout)
        pages.write_pages(hashes, [memoryview(page) for page in written])
        found = pages.lookup_prefix(hashes)
        pages.read_pages(hashes, [memoryview(page) for page in read])
        objects = sum(1 for _ in store.list_keys())

    assert found == 2
    assert [bytes(page) for page in read] == written
    print(f"2 pages written and read back through {objects} objects of the folder")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        use_it(Path(scratch))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, *sys.argv[1:]]
    sys.exit(subprocess.run(command, check=False).returncode)
