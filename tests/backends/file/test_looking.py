"""A store that is opened with create = False shows what is there, and changes nothing at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage.backends.file import FileStore
from hicache_storage.errors import AccessDenied, ConfigError, StoreUnavailable, Unsupported
from hicache_storage.types import HIT, MISS, ObjectWrite, RangeRead
from tests.backends.file.books import PAGE

OpenStore = Callable[..., FileStore]
FileOf = Callable[[str], Path]


def picture(root: Path) -> dict[str, tuple[int, int, int]]:
    """Return every file and folder with its size and the times at which it and its entry were changed."""
    found = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        found[str(path)] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return found


@pytest.fixture
def filled(root: Path, open_store: OpenStore, file_of: FileOf) -> Path:
    """A folder with two objects, an orphan and a quarantined file, and a capacity's books."""
    with open_store(capacity_nbytes=1 << 30) as store:
        for key in ("a", "b", "bad"):
            store.write(key, [PAGE])
        store.quarantine("bad")
    (root / "tmp" / f"{'0' * 16}.1.1.token.0.0").write_bytes(b"half")
    return root


@pytest.mark.parametrize("options", [{}, {"capacity_nbytes": 4096, "orphan_age_s": 0}, {"direct": True}])
def test_looking_changes_nothing(filled: Path, open_store: OpenStore, options: dict[str, object]) -> None:
    before = picture(filled)

    with open_store(create=False, **options) as store:
        target = bytearray(len(PAGE))
        assert sorted(info.key for info in store.list_keys()) == ["a", "b"]
        assert store.stat("a") is not None
        assert store.read_into("a", 0, [target], object_nbytes=len(PAGE))
        assert store.read_many([RangeRead("b", 0, [target]), RangeRead("c", 0, [target])]) == [HIT, MISS]
        assert store.exists_many(["a", "c"]) == store.touch_many(["a", "c"]) == [HIT, MISS]

    assert picture(filled) == before


@pytest.mark.parametrize("depth", ["missing", "missing/deeper"])
def test_a_missing_folder_is_unavailable_and_stays_missing(open_store: OpenStore, tmp_path: Path, depth: str) -> None:
    with pytest.raises(StoreUnavailable, match=f"'{tmp_path / depth}'.*no such folder"):
        open_store(path=tmp_path / depth, create=False)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_store_is_an_empty_one_and_stays_empty(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(path=tmp_path, create=False)

    assert list(store.list_keys()) == []
    assert store.stat("a") is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_read_is_denied(
    filled: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(AccessDenied, match=f"'{filled}'"):
        open_store(create=False)


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("write", lambda store: store.write("new", [PAGE])),
        ("write", lambda store: store.write("a", [PAGE])),
        ("delete", lambda store: store.delete("a")),
        ("quarantine", lambda store: store.quarantine("a")),
    ],
)
def test_a_change_is_refused(
    filled: Path, open_store: OpenStore, op: str, change: Callable[[FileStore], object]
) -> None:
    store = open_store(create=False)
    before = picture(filled)

    with pytest.raises(Unsupported, match="create = False") as caught:
        change(store)

    assert caught.value.op == op
    assert picture(filled) == before


def test_a_batch_of_changes_fails_object_by_object(filled: Path, open_store: OpenStore) -> None:
    store = open_store(create=False)

    outcomes = [*store.write_many([ObjectWrite("new", [PAGE])] * 2), *store.delete_many(["a"])]

    assert [type(outcome.error) for outcome in outcomes] == [Unsupported] * 3


def test_a_looker_does_not_keep_a_capacity_from_being_counted(filled: Path, open_store: OpenStore) -> None:
    looker = open_store(create=False)
    (filled / ".ledger").write_text("99999999999999999999\n")

    open_store(capacity_nbytes=1 << 30)

    assert int((filled / ".ledger").read_text()) == 3 * len(PAGE)
    assert looker.stat("a") is not None


def test_a_tilde_is_not_taken_for_a_name(open_store: OpenStore) -> None:
    with pytest.raises(ConfigError, match="expand"):
        open_store(path=Path("~/cache"), create=False)
