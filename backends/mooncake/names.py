"""Keys as Mooncake names: reversible, without anything that a line, a URL or a comma-separated list could trip over."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

_PLAIN = re.compile(rb"[^A-Za-z0-9_./:=@+-]")


class Names:
    """One store's keys in the space of names that it shares with every other user of the master."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def name(self, encoded_key: bytes) -> str:
        """Return the name of a key given as UTF-8; a `hicache` object key stays as it is behind the prefix."""
        return self._prefix + _PLAIN.sub(lambda match: b"%%%02X" % match[0][0], encoded_key).decode("ascii")

    def key(self, name: str) -> str | None:
        """Return the key of *name*; None for a name that no key of this store has."""
        if not name.startswith(self._prefix):
            return None
        try:
            key = unquote_to_bytes(name[len(self._prefix) :]).decode("utf-8")
        except UnicodeDecodeError:
            return None
        return key if key and self.name(key.encode()) == name else None

    def group(self, name: str) -> str:
        """Return the group of *name*: everything before the first ``_`` of its key, which is a page's hash."""
        return self._prefix + name[len(self._prefix) :].partition("_")[0]
