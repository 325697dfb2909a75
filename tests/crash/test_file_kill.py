"""A writer that is killed in the middle of a write leaves nothing that anybody sees, and nothing for long."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileOptions, FileStore
from hicache_storage.backends.file.drafts import can_be_unnamed
from hicache_storage.backends.file.folder import Folder
from hicache_storage.types import WriteResult
from tests.processes import awaited

BODY = bytes(range(256)) * 1024

WRITER = """
import os, sys
from pathlib import Path
from hicache_storage.backends.file import FileOptions, FileStore, drafts
root, kind, call = sys.argv[1:]
if kind == "named":
    drafts.can_be_unnamed = lambda _: False
real = getattr(os, call)
def stuck(*arguments, **options):
    if call == "pwritev":
        real(arguments[0], [arguments[1][0][:1000]], 0)
    print("in the middle", flush=True)
    sys.stdin.read()
store = FileStore(FileOptions(path=Path(root), capacity_nbytes=1 << 20 if kind == "counted" else None))
setattr(os, call, stuck)
store.write("key", [bytes(range(256)) * 1024])
"""


@contextmanager
def stuck_writer(root: Path, kind: str, call: str) -> Iterator[None]:
    """A process stands still within one call of a write; it is killed at the end."""
    command = [sys.executable, "-c", WRITER, str(root), kind, call]
    with awaited(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"in the middle\n"
            yield
        finally:
            process.kill()


def options_of(root: Path, kind: str) -> FileOptions:
    return FileOptions(path=root, capacity_nbytes=1 << 20 if kind == "counted" else None)


@pytest.mark.parametrize(
    ("kind", "call", "temps"),
    [("unnamed", "pwritev", 0), ("unnamed", "link", 0), ("named", "pwritev", 1), ("named", "replace", 1),
     ("counted", "pwritev", 1)],
)  # fmt: skip
def test_a_killed_writer_leaves_no_object_and_its_temp_is_reclaimed(
    tmp_path: Path, kind: str, call: str, temps: int
) -> None:
    if kind == "unnamed" and not can_be_unnamed(Folder.prepare(tmp_path)):
        pytest.skip("the filesystem of the test folder has no O_TMPFILE")

    with stuck_writer(tmp_path, kind, call), FileStore(options_of(tmp_path, kind)) as store:
        assert store.stat("key") is None
        live = list((tmp_path / "tmp").iterdir())

    assert len(live) == temps
    assert all(path.exists() for path in live)
    with FileStore(options_of(tmp_path, kind)) as store:
        assert list((tmp_path / "tmp").iterdir()) == []
        assert store.stat("key") is None
        assert list(store.list_keys()) == []
        assert store.write("key", [BODY]) is WriteResult.STORED
        target = bytearray(len(BODY))
        assert store.read_into("key", 0, [target], object_nbytes=len(BODY))
        assert target == BODY


def test_a_writer_killed_while_it_holds_the_books_blocks_nobody(tmp_path: Path) -> None:
    with FileStore(options_of(tmp_path, "counted")) as store:
        with stuck_writer(tmp_path, "counted", "replace"):
            pass

        assert store.write("other", [BODY]) is WriteResult.STORED
        assert booked_nbytes(tmp_path) == 2 * len(BODY)
    with FileStore(options_of(tmp_path, "counted")):
        assert booked_nbytes(tmp_path) == len(BODY)


def booked_nbytes(root: Path) -> int:
    return int((root / ".ledger").read_text())
