"""Which object of the bucket holds which key: pure functions of the key.

The name of a key is its UTF-8, where everything but ``[A-Za-z0-9_-]`` is written ``!XX`` in upper-case
hexadecimal. A name of more than `PIECE_CHARS` characters is cut into pieces of that length with ``!/``
between them: servers that keep objects in folders take at most 255 bytes between two slashes.

Only plain characters and ``!`` reach the server, so no server, proxy or file system that it builds on can
read anything into a key: dots, slashes, percent signs and case are only characters. A name gives its key
back, the names of two keys differ, and the name of a key's beginning is the beginning of its name.
"""

from __future__ import annotations

import re
import string

MAX_NAME_NBYTES = 1024
"""Longest name in S3, prefix included."""

PIECE_CHARS = 240

_PLAIN = frozenset((string.ascii_letters + string.digits + "_-").encode())
_WRITTEN = tuple(chr(byte) if byte in _PLAIN else f"!{byte:02X}" for byte in range(256))
_IS_PLAIN = re.compile(rb"[A-Za-z0-9_-]{1,%d}" % PIECE_CHARS)
_NAME = re.compile(r"(?:[A-Za-z0-9_-]|![0-9A-F]{2})+")
_ESCAPE = re.compile(rb"!([0-9A-F]{2})")
_CUT = "!/"


def object_name(key: bytes) -> str:
    """Return the name, without the store's prefix, of the object with this UTF-8 key; ``""`` for ``b""``."""
    if _IS_PLAIN.fullmatch(key):
        return key.decode("ascii")
    written = "".join(map(_WRITTEN.__getitem__, key))
    return _CUT.join(written[start : start + PIECE_CHARS] for start in range(0, len(written), PIECE_CHARS))


def key_of_name(name: str) -> str | None:
    """Return the key of a name; None if no key has this name."""
    written = name.replace(_CUT, "")
    if not _NAME.fullmatch(written):
        return None
    try:
        key = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), written.encode()).decode()
    except UnicodeDecodeError:
        return None
    return key if object_name(key.encode()) == name else None


def max_key_nbytes(prefix: str) -> int:
    """Return the length up to which every key has a name that fits behind *prefix*, whatever it is made of."""
    room = MAX_NAME_NBYTES - len(prefix.encode())
    longest = room // 3
    while longest > 0 and 3 * longest + len(_CUT) * ((3 * longest - 1) // PIECE_CHARS) > room:
        longest -= 1
    return longest
