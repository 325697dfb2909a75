from __future__ import annotations

import random
from collections import Counter

import pytest

from hicache_storage.backends.file.names import MAX_NAME_NBYTES, is_hashed, key_of_name, object_path

HOSTILE = [
    ".", "..", "../x", "a/../../b", "/", "/etc/passwd", "a/b", "a:b", "a b", "a\0b", "a\nb", "~", "%", "%2E", "=", "=x",
    "-rf", "*", "caf\u00e9", "cafe\u0301", "\u4f60\u597d", "\U0001f600", "A", "a", " ", ".hidden", "x.key", "=x.key",
    "a" * 229, "a" * 230, "a" * 231, "a" * 253, "/" * 76, "/" * 77, "a" * 10_000, "\u00e9" * 10_000, "b" * 10_000,
]  # fmt: skip


def test_a_path_is_a_golden_constant() -> None:
    # Another path would lose what is stored.
    assert object_path("abc") == "3c/2b/abc"
    assert object_path("a/b \u00e9") == "77/1d/a%2Fb%20%C3%A9"
    assert object_path("k" * 300) == "1f/24/=17b16d8ef494060fefa36a6a41567b8c32d213a17e02b7eeae86158cc4495461"


@pytest.mark.parametrize("key", HOSTILE, ids=lambda key: repr(key)[:20])
def test_a_name_is_one_plain_path_component(key: str) -> None:
    outer, inner, name = object_path(key).split("/")

    assert len(outer) == len(inner) == 2
    assert name not in (".", "..", "")
    assert not name.startswith(".")
    assert len(name) <= MAX_NAME_NBYTES
    assert name.isascii()
    assert name.isprintable()


@pytest.mark.parametrize("key", HOSTILE, ids=lambda key: repr(key)[:20])
def test_a_name_that_is_not_hashed_gives_its_key_back(key: str) -> None:
    name = object_path(key).rpartition("/")[2]

    assert is_hashed(name) == (len(key) > 76 and key != "a" * 229 and key != "a" * 230)
    assert is_hashed(name) or key_of_name(name) == key.encode()


def test_no_two_keys_share_a_name() -> None:
    names = [object_path(key).rpartition("/")[2] for key in HOSTILE]

    assert len(set(names)) == len(HOSTILE)


def test_no_name_is_another_ones_companion() -> None:
    names = {object_path(key).rpartition("/")[2] for key in HOSTILE}

    assert not names & {f"{name}.key" for name in names if is_hashed(name)}


def test_an_ordinary_key_is_its_own_name() -> None:
    key = f"{'0f' * 32}_ukv1-{'a1' * 32}_L0-30_H1"

    assert object_path(key).rpartition("/")[2] == key


def test_no_folder_has_over_512_entries_at_100_000_objects() -> None:
    rng = random.Random(20)
    paths = [object_path(f"{rng.getrandbits(256):064x}_ukv1_L0-30_H{i % 8}") for i in range(100_000)]
    inner = Counter(path.rpartition("/")[0] for path in paths)
    outer = Counter(folder.partition("/")[0] for folder in inner)

    assert max(inner.values()) <= 32
    assert max(outer.values()) <= 128
    assert len(outer) <= 128


def test_objects_of_similar_keys_spread_evenly() -> None:
    per_folder = Counter(object_path(f"k{i}").rpartition("/")[0] for i in range(163_840))

    assert len(per_folder) > 16_000
    assert max(per_folder.values()) < 40
