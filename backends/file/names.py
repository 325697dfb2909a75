"""Which file holds which key: pure functions of the key.

An object lies at ``objects/xx/yy/NAME``. The fan-out ``xx/yy`` is the top 14 bits of the key's XXH3-64
(UTF-8, seed 0), seven bits each in two hexadecimal digits: 128 folders of 128 folders, 16,384 in all.
With n objects a folder holds n / 16,384 on average, spread like a Poisson distribution:

    =============  =======  ==============================
    objects        average  fullest folder to be expected
    =============  =======  ==============================
    100,000        6.1      about 18
    1,000,000      61       about 95
    6,500,000      397      about 480
    =============  =======  ==============================

No folder is expected to pass 512 entries below 6.5 million objects; beyond that they grow evenly.

NAME depends on the key alone and gives it back:

- the key itself, if it is made of ``[A-Za-z0-9._-]`` and does not begin with a dot;
- else its UTF-8 with every other byte, and a leading dot, as ``%XX``;
- else, where that is longer than `MAX_NAME_NBYTES`, ``=`` and the SHA-256 of the key; a companion file
  ``NAME.key`` beside it holds the key.

The three forms cannot meet: neither ``%`` nor ``=`` is a plain character, and ``=`` is always escaped.
"""

from __future__ import annotations

import hashlib
import string
from urllib.parse import quote_from_bytes, unquote_to_bytes

import xxhash

MAX_NAME_NBYTES = 230
"""Longest name; the quarantine puts 20 bytes before it, and a directory entry holds 255."""

COMPANION_SUFFIX = ".key"

_PLAIN = (string.ascii_letters + string.digits + "._-").encode()
_DOT = ord(".")
_FAN_OUT = tuple(f"{number >> 7:02x}/{number & 127:02x}/" for number in range(1 << 14))


def object_path(key: str) -> str:
    """Return the path, relative to the folder of all objects, of the object with this non-empty key.

    Raises:
        UnicodeEncodeError: the key cannot be encoded as UTF-8.
    """
    encoded = key.encode()
    folder = _FAN_OUT[xxhash.xxh3_64_intdigest(encoded) >> 50]
    if len(encoded) <= MAX_NAME_NBYTES and not encoded.translate(None, _PLAIN) and encoded[0] != _DOT:
        return folder + key
    return folder + _escaped_or_hashed(encoded)


def is_hashed(name: str) -> bool:
    """Return whether a file with this name has its key in a companion file."""
    return name.startswith("=")


def key_of_name(name: str) -> bytes:
    """Return the key of a name that is not hashed."""
    return unquote_to_bytes(name)


def _escaped_or_hashed(key: bytes) -> str:
    escaped = quote_from_bytes(key, safe="")
    if escaped.startswith("."):
        escaped = "%2E" + escaped[1:]
    if len(escaped) <= MAX_NAME_NBYTES:
        return escaped
    return "=" + hashlib.sha256(key).hexdigest()
