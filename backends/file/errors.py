"""What an `OSError` means here: the one place that decides it."""

from __future__ import annotations

import errno

from hicache_storage.errors import AccessDenied, CorruptObject, StoreError, StoreFull, StoreUnavailable, Unsupported

BACKEND = "file"

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})

UNREADABLE = frozenset({errno.EIO, errno.EISDIR, errno.ESPIPE, errno.ENXIO})
"""A bad sector, or a folder, a pipe or a socket in an object's place."""

_MEANING: dict[int, type[StoreError]] = {
    errno.EACCES: AccessDenied,
    errno.EPERM: AccessDenied,
    errno.EROFS: AccessDenied,
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
    errno.EFBIG: Unsupported,
    errno.ENAMETOOLONG: Unsupported,
}


def store_error(error: OSError, *, op: str, key: str = "") -> StoreError:
    """Return what *error* means for one operation; the caller raises it from *error*.

    A device error while one object is read condemns that object only; while something is written
    it says nothing about what is there, so it means that the store is unavailable.
    """
    if op == "read" and error.errno in UNREADABLE:
        meaning: type[StoreError] = CorruptObject
    else:
        meaning = _MEANING.get(error.errno or 0, StoreUnavailable)
    code = errno.errorcode.get(error.errno or 0, "OSError")
    return meaning(f"{code}: {error.strerror or error}", backend=BACKEND, op=op, key=key)
