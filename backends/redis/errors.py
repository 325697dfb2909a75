"""What a reply of the server, an exception of redis-py or a failed connection means here: the one place that decides it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisClusterException, RedisError

from hicache_storage.errors import AccessDenied, CorruptObject, StoreError, StoreFull, StoreUnavailable, Unsupported

BACKEND = "redis"

_WITHIN_SCRIPT = re.compile(r"ERR Error running script .*: -([A-Z]+) ")


class ReplyError(Exception):
    """The server answered with an error; the connection is in order.

    Attributes:
        code: the first word of the answer, such as ``OOM``. Of an error within a script it is the error's own,
            before which Redis, up to version 6, tells where in the script it was.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        within_script = _WITHIN_SCRIPT.match(text)
        self.code = within_script[1] if within_script else text.partition(" ")[0]


class ConnectionLost(Exception):
    """The connection failed, or what comes from it makes no sense; nothing more is read from it.

    Attributes:
        silent: the server did not answer in time or cannot be reached at all. Asking it again
            within the same call would cost the same time again.
    """

    def __init__(self, reason: str, *, silent: bool = False) -> None:
        super().__init__(reason)
        self.silent = silent


_BY_CODE: dict[str, type[StoreError]] = {
    "OOM": StoreFull,
    "NOAUTH": AccessDenied,
    "WRONGPASS": AccessDenied,
    "NOPERM": AccessDenied,
    "DENIED": AccessDenied,
    "WRONGTYPE": CorruptObject,
    "ASK": StoreUnavailable,
    "BUSY": StoreUnavailable,
    "CLUSTERDOWN": StoreUnavailable,
    "LOADING": StoreUnavailable,
    "MASTERDOWN": StoreUnavailable,
    "MISCONF": StoreUnavailable,
    "MOVED": StoreUnavailable,
    "NOREPLICAS": StoreUnavailable,
    "READONLY": StoreUnavailable,
    "TRYAGAIN": StoreUnavailable,
}

_BY_TEXT: dict[str, type[StoreError]] = {
    "max number of clients": StoreUnavailable,
    "string exceeds maximum": Unsupported,
    "invalid bulk length": Unsupported,
    "unknown command": Unsupported,
    "ACL failure in script": AccessDenied,
    "can't run this command": AccessDenied,
}
"""Parts of answers that begin with the general ``ERR``."""

BY_EXCEPTION: dict[str, type[StoreError]] = {
    "AuthenticationError": AccessDenied,
    "AuthenticationWrongNumberOfArgsError": AccessDenied,
    "AuthorizationError": AccessDenied,
    "ExternalAuthProviderError": AccessDenied,
    "NoPermissionError": AccessDenied,
    "OutOfMemoryError": StoreFull,
    "BusyLoadingError": StoreUnavailable,
    "ClusterDownError": StoreUnavailable,
    "ClusterError": StoreUnavailable,
    "ConnectionError": StoreUnavailable,
    "InvalidResponse": StoreUnavailable,
    "MasterDownError": StoreUnavailable,
    "MaxConnectionsError": StoreUnavailable,
    "MovedError": StoreUnavailable,
    "AskError": StoreUnavailable,
    "ReadOnlyError": StoreUnavailable,
    "RedisClusterException": StoreUnavailable,
    "SlotNotCoveredError": StoreUnavailable,
    "TimeoutError": StoreUnavailable,
    "TryAgainError": StoreUnavailable,
    "ChildDeadlockedError": StoreError,
    "ClusterCrossSlotError": StoreError,
    "CrossSlotTransactionError": StoreError,
    "DataError": StoreError,
    "ExecAbortError": StoreError,
    "IncorrectPolicyType": StoreError,
    "InvalidPipelineStack": StoreError,
    "LockError": StoreError,
    "LockNotOwnedError": StoreError,
    "ModuleError": StoreError,
    "NoScriptError": StoreError,
    "NoSuchFieldsetError": StoreError,
    "PubSubError": StoreError,
    "RedisError": StoreError,
    "ResponseError": StoreError,
    "WatchError": StoreError,
}
"""redis-py's exceptions by name: which of them exist depends on its version."""


def store_error(error: Exception, *, op: str, key: str = "") -> StoreError:
    """Return what *error* means for one operation on one object, with *error* as its cause; ours mean themselves."""
    if isinstance(error, StoreError):
        return error
    meaning = _meaning(error)(str(error) or type(error).__name__, backend=BACKEND, op=op, key=key)
    meaning.__cause__ = error
    return meaning


@contextmanager
def connecting(where: str) -> Iterator[None]:
    """Turn what goes wrong while a connection is made into `StoreError`; nobody else sees redis-py's exceptions."""
    try:
        yield
    except (RedisError, RedisClusterException, OSError, UnicodeError) as error:  # The last: no host has such a name.
        meaning = _meaning(error)
        raise meaning(f"{where}: {error}", backend=BACKEND, op="connect") from error


def _meaning(error: Exception) -> type[StoreError]:
    if isinstance(error, ReplyError):
        return _meaning_of_reply(error)
    if _refused_certificate(error):
        return AccessDenied
    if isinstance(error, ConnectionLost | OSError):
        return StoreUnavailable
    names = [BY_EXCEPTION[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in BY_EXCEPTION]
    return names[0] if names else StoreError


def _meaning_of_reply(error: ReplyError) -> type[StoreError]:
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((meaning for part, meaning in _BY_TEXT.items() if part in str(error)), StoreError)


def _refused_certificate(error: BaseException | None) -> bool:
    """Return whether a certificate was refused on the way to *error*: waiting mends no certificate."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
