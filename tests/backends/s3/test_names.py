"""Names of objects: only characters that nobody reads anything into, and every key comes back."""

from __future__ import annotations

import random
import re

import pytest

from hicache_storage.backends.s3.names import MAX_NAME_NBYTES, PIECE_CHARS, key_of_name, max_key_nbytes, object_name
from hicache_storage.testing.contract import HOSTILE_KEYS

PAGE_KEY = "0f" * 32 + "_ukv1-" + "ab" * 16 + "_L0-30_H1"


def test_the_key_of_a_page_is_its_own_name() -> None:
    assert object_name(PAGE_KEY.encode()) == PAGE_KEY


@pytest.mark.parametrize("key", HOSTILE_KEYS, ids=lambda key: ascii(key[:12]))
def test_a_name_gives_its_key_back(key: str) -> None:
    name = object_name(key.encode())

    assert key_of_name(name) == key
    assert re.fullmatch(r"[A-Za-z0-9_!-]+(/[A-Za-z0-9_!-]+)*", name)
    assert all(len(piece) <= 255 for piece in name.split("/"))


def test_names_of_different_keys_differ() -> None:
    assert len({object_name(key.encode()) for key in HOSTILE_KEYS}) == len(set(HOSTILE_KEYS))


def test_the_name_of_a_beginning_is_the_beginning_of_the_name(rng: random.Random) -> None:
    for _ in range(300):
        key = "".join(rng.choices("a/.\u00e9", k=rng.randrange(1, 400)))
        start = key[: rng.randrange(len(key))]

        assert object_name(key.encode()).startswith(object_name(start.encode()))


def test_no_name_is_the_folder_of_another() -> None:
    # On servers that keep objects as files, one name cannot be both.
    names = [object_name(b"n" * nbytes) for nbytes in range(1, 4 * PIECE_CHARS)]

    assert not {f"{name}/" for name in names} & {name[: name.find("/") + 1] for name in names if "/" in name}


@pytest.mark.parametrize(
    "name", ["", "a/b", "a!/", "!/a", "!", "!2", "!2f", "!41", "!C3", "!FF", "a.b", "%41", "!probe-1", "n!/n", "a b"]
)
def test_what_no_key_is_named_is_somebody_elses(name: str) -> None:
    assert key_of_name(name) is None


@pytest.mark.parametrize("prefix", ["", "kv/", "team/kv/", "p" * 500 + "/"])
def test_the_longest_key_fits_whatever_it_is_made_of(prefix: str) -> None:
    longest = max_key_nbytes(prefix)

    assert len(prefix + object_name(b"/" * longest)) <= MAX_NAME_NBYTES
    assert len(prefix + object_name(b"/" * (longest + 1))) > MAX_NAME_NBYTES
