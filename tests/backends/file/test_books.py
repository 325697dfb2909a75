"""The books are right whoever opens the folder first: who writes without a capacity notices who has one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileStore
from hicache_storage.backends.file.evict import Evictor
from hicache_storage.types import ObjectWrite, WriteResult
from tests.backends.file.books import PAGE, booked_nbytes, charged_nbytes, there
from tests.processes import awaited

OpenStore = Callable[..., FileStore]
FileOf = Callable[[str], Path]

CAPACITY_NBYTES = 1 << 20
DEADLINE_S = 60


def test_who_was_there_before_the_first_capacity_is_counted(root: Path, open_store: OpenStore) -> None:
    early = open_store()
    early.write("before", [PAGE])
    open_store(capacity_nbytes=CAPACITY_NBYTES)

    early.write("k", [PAGE])
    assert booked_nbytes(root) == charged_nbytes(root) == 2 * len(PAGE)
    early.write_many([ObjectWrite(f"k{i}", [PAGE]) for i in range(8)])
    assert booked_nbytes(root) == charged_nbytes(root) == 10 * len(PAGE)
    early.delete("k")
    assert booked_nbytes(root) == charged_nbytes(root) == 9 * len(PAGE)
    early.quarantine("k1")
    assert booked_nbytes(root) == charged_nbytes(root) == 9 * len(PAGE)


@pytest.mark.parametrize("change", ["write", "delete", "quarantine"])
def test_the_first_change_of_any_kind_is_counted(root: Path, open_store: OpenStore, change: str) -> None:
    early = open_store(quarantine_count=0)
    early.write("k", [PAGE])
    open_store(capacity_nbytes=CAPACITY_NBYTES)

    changes: dict[str, Callable[[], object]] = {
        "write": lambda: early.write("new" * 200, [PAGE]),
        "delete": lambda: early.delete("k"),
        "quarantine": lambda: early.quarantine("k"),
    }
    changes[change]()

    assert booked_nbytes(root) == charged_nbytes(root)


def test_another_process_notices_too(root: Path, open_store: OpenStore) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from hicache_storage.backends.file import FileOptions, FileStore\n"
        "with FileStore(FileOptions(path=Path(sys.argv[1]))) as store:\n"
        "    print('open', flush=True)\n"
        "    input()\n"
        "    for i in range(8):\n"
        "        store.write(f'k{i}', [bytes(16384)])\n"
    )
    command = [sys.executable, "-c", code, str(root)]
    with awaited(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        open_store(capacity_nbytes=CAPACITY_NBYTES)
        process.communicate("go\n", timeout=60)

    assert process.returncode == 0
    assert booked_nbytes(root) == charged_nbytes(root) == 8 * len(PAGE)


def test_its_reads_count_as_uses_from_then_on(open_store: OpenStore) -> None:
    early = open_store()
    keys = [f"k{i}" for i in range(4)]
    for key in keys:
        early.write(key, [PAGE])
    capped = open_store(capacity_nbytes=4 * len(PAGE), eviction_ratio=1.0)

    assert early.read_into("k0", 0, [bytearray(1)])
    assert early.touch_many(["k1"])[0]
    capped.write_many([ObjectWrite(f"new-{i}", [PAGE]) for i in range(2)])

    assert there(capped, keys) == ["k0", "k1"]


def test_noticing_scans_no_folder(root: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    early = open_store()
    open_store(capacity_nbytes=CAPACITY_NBYTES)
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", None)
        patched.setattr(os, "listdir", None)
        for i in range(4):
            assert early.write(f"k{i}", [PAGE]) is WriteResult.STORED
        assert early.delete("k0") is True

    assert booked_nbytes(root) == charged_nbytes(root)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_write_that_meets_the_first_count_is_counted_once(
    draft_kind: str, root: Path, open_store: OpenStore, file_of: FileOf, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    early = open_store()
    early.write("k", [PAGE])
    file_of("meeting").parent.mkdir(parents=True, exist_ok=True)
    call = "link" if draft_kind == "unnamed" else "replace"
    real = getattr(os, call)

    def meeting(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(os, call, real)
        if moment == "after":
            real(*arguments, **options)
        open_store(capacity_nbytes=CAPACITY_NBYTES)
        if moment == "before":
            real(*arguments, **options)

    monkeypatch.setattr(os, call, meeting)
    early.write("meeting", [PAGE])
    early.write("later", [PAGE])

    assert booked_nbytes(root) == charged_nbytes(root) == 3 * len(PAGE)


def test_a_write_that_is_published_behind_the_first_counts_back_is_counted(
    unnamed_drafts: None, root: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = open_store()
    drafted, counted, published = threading.Event(), threading.Event(), threading.Event()
    link, look_around = os.link, Evictor.look_around

    def late_link(source: str, path: str, *, src_dir_fd: int, follow_symlinks: bool) -> None:
        drafted.set()
        assert counted.wait(DEADLINE_S)
        link(source, path, src_dir_fd=src_dir_fd, follow_symlinks=follow_symlinks)
        published.set()

    def counting(evictor: Evictor) -> int:
        found = look_around(evictor)
        counted.set()
        assert published.wait(DEADLINE_S)
        return found

    monkeypatch.setattr(os, "link", late_link)
    monkeypatch.setattr(Evictor, "look_around", counting)
    with ThreadPoolExecutor(1) as other:
        writing = other.submit(early.write, "k", [PAGE])
        assert drafted.wait(DEADLINE_S)
        open_store(capacity_nbytes=CAPACITY_NBYTES)
        assert writing.result(DEADLINE_S) is WriteResult.STORED

    assert booked_nbytes(root) == charged_nbytes(root) == len(PAGE)


def test_a_first_count_that_was_cut_short_is_made_again(
    root: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = open_store()
    early.write("k", [PAGE])

    def killed(_: Evictor) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Evictor, "look_around", killed)
        with pytest.raises(KeyboardInterrupt):
            open_store(capacity_nbytes=CAPACITY_NBYTES)

    early.write("l", [PAGE])

    assert booked_nbytes(root) == charged_nbytes(root) == 2 * len(PAGE)
