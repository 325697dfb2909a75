"""What lies in a store's folder. Only counting, evicting and listing read directories; no data path does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hicache_storage.backends.file.folder import Folder
from hicache_storage.backends.file.names import COMPANION_SUFFIX, is_hashed, key_of_name


def scan(path: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of the folder at *path*; none if it is not there."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        yield from entries


def leaves(folder: Folder) -> Iterator[str]:
    """Yield the path of every folder that may hold objects."""
    for outer in scan(folder.objects):
        for inner in scan(outer.path):
            yield inner.path


def key_of(entry: os.DirEntry[str]) -> bytes:
    """Return the key, in UTF-8, that an object's file stands for.

    Raises:
        FileNotFoundError: its name is hashed, and there is no companion that holds the key.
    """
    return Path(entry.path + COMPANION_SUFFIX).read_bytes() if is_hashed(entry.name) else key_of_name(entry.name)
