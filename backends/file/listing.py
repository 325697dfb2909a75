"""All objects of a folder, with the keys that their names stand for."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hicache_storage.backends.file.errors import store_error
from hicache_storage.backends.file.folder import Folder
from hicache_storage.backends.file.names import COMPANION_SUFFIX, is_hashed, object_path
from hicache_storage.backends.file.walk import key_of, leaves, scan
from hicache_storage.types import ObjectInfo


def objects_in(folder: Folder, prefix: str) -> Iterator[ObjectInfo]:
    """Yield every object whose key starts with *prefix*. Files that come and go meanwhile do no harm.

    A file that no key leads to is somebody else's and is left out.
    """
    try:
        for leaf in leaves(folder):
            for entry in scan(leaf):
                info = _info_of(folder, entry, prefix)
                if info is not None:
                    yield info
    except OSError as error:
        raise store_error(error, op="list") from error


def _info_of(folder: Folder, entry: os.DirEntry[str], prefix: str) -> ObjectInfo | None:
    if is_hashed(entry.name) and entry.name.endswith(COMPANION_SUFFIX):
        return None
    try:
        key = key_of(entry).decode()
        if not key.startswith(prefix) or folder.objects + object_path(key) != entry.path:
            return None
        if not entry.is_file(follow_symlinks=False):
            return None
        status = entry.stat(follow_symlinks=False)
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return ObjectInfo(key, status.st_size, status.st_mtime)
