"""Which Redis key holds which object: pure functions of the object's key.

A Redis key is the prefix, and the object's key in UTF-8 with ``%``, ``{`` and ``}`` written as ``%25``, ``%7B`` and
``%7D``. So ``redis-cli`` shows what an object is called, every Redis key gives back its object's key, and none
has a hash tag: keys spread over the slots of a cluster, and a key in braces is the tag of something that belongs to it.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

_ESCAPED = ((b"%", b"%25"), (b"{", b"%7B"), (b"}", b"%7D"))
_GLOB = b"\\*?["


class Keys:
    """The keys of one store, all with the same prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def of(self, key: bytes) -> bytes:
        """Return the Redis key of the object with this UTF-8 key."""
        return self._prefix + _escaped(key)

    def pattern(self, prefix: bytes) -> bytes:
        """Return the ``SCAN`` pattern of all Redis keys whose objects' keys start with *prefix*."""
        start = self.of(prefix)
        return b"".join([b"\\%c" % byte if byte in _GLOB else b"%c" % byte for byte in start]) + b"*"

    def name(self, redis_key: bytes) -> str | None:
        """Return the key of the object under a Redis key; None if no object of this store can be there."""
        escaped = redis_key.removeprefix(self._prefix)
        key = unquote_to_bytes(escaped)
        if not key or self.of(key) != redis_key:
            return None
        try:
            return key.decode()
        except UnicodeDecodeError:
            return None


def _escaped(key: bytes) -> bytes:
    if b"%" in key or b"{" in key or b"}" in key:
        for plain, escaped in _ESCAPED:
            key = key.replace(plain, escaped)
    return key
