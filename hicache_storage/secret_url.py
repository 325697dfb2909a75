"""A URL that shows where it leads and keeps to itself who goes there with which password."""

from __future__ import annotations

from urllib.parse import urlsplit

from hicache_storage.config import Secret

_MASK = "***"


class SecretUrl(Secret):
    """A URL that prints without what may be secret in it: what stands for a password, and the values behind a ``?``.

    A user without a password may be one by mistake, and is not shown either. A URL that cannot be taken apart for
    certain, because a password has characters that should have been escaped, is not shown at all.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(str(self))

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __str__(self) -> str:
        try:
            return _masked(self.reveal())
        except ValueError:
            return _MASK


def parse_secret_url(value: object) -> SecretUrl:
    """Return a URL, from text or a `Secret`; for an option whose type is `Secret`."""
    if isinstance(value, Secret):
        return SecretUrl(value.reveal())
    if not isinstance(value, str):
        raise ValueError("expected text")  # noqa: TRY004 - config.resolve turns ValueError into ConfigError
    return SecretUrl(value)


def _masked(url: str) -> str:
    """Return *url* with its secrets masked.

    Raises:
        ValueError: it cannot be taken apart.
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    elsewhere = parts.path + parts.query + parts.fragment
    if not parts.scheme or "@" in elsewhere or "@" in user or (parts.netloc and not parts.hostname):
        return _MASK
    _ = parts.port  # Raises where what stands behind the colon is no port, but a password without a host.
    name, colon, _ = user.partition(":")
    shown = f"{name}:{_MASK}" if colon else _MASK
    query = f"?{_MASK}" if parts.query else ""
    return f"{parts.scheme}://{f'{shown}@' if at else ''}{host}{parts.path}{query}"
