"""What an answer of the server, a broken connection or an exception of the SDK means here: the one place that decides it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.client import HTTPException

from botocore import exceptions as sdk

from hicache_storage.errors import AccessDenied, RangeError, StoreError, StoreFull, StoreUnavailable, Unsupported

BACKEND = "s3"

NO_SUCH_BUCKET = "NoSuchBucket"

_MEANING_OF_CODE: dict[str, type[StoreError]] = {
    **dict.fromkeys(
        ("AccessDenied", "AccountProblem", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidSecurity",
         "InvalidToken", "NotSignedUp", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired",
         "UnauthorizedAccess"),
        AccessDenied,
    ),
    **dict.fromkeys(
        ("BadDigest", "BandwidthLimitExceeded", "ConditionalRequestConflict", "IncompleteBody", "InternalError",
         "NoSuchUpload", "OperationAborted", "RequestLimitExceeded", "RequestTimeout", "ServiceUnavailable", "SlowDown",
         "SlowDownRead", "SlowDownWrite", "TemporaryRedirect", "Throttling", "ThrottlingException", "TooManyRequests"),
        StoreUnavailable,
    ),
    **dict.fromkeys(
        ("InsufficientCapacity", "InsufficientStorage", "QuotaExceeded", "StorageQuotaExceeded",
         "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"),
        StoreFull,
    ),
    **dict.fromkeys(
        ("EntityTooLarge", "InvalidObjectState", "InvalidStorageClass", "KeyTooLongError", "MethodNotAllowed",
         "NotImplemented"),
        Unsupported,
    ),
    **dict.fromkeys(
        (NO_SUCH_BUCKET, "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "InvalidBucketName",
         "PermanentRedirect"),
        StoreError,
    ),
    "InvalidRange": RangeError,
}  # fmt: skip
"""AWS's codes, and those of MinIO, Ceph and R2 that differ."""

_MEANING_OF_STATUS: dict[int, type[StoreError]] = {
    301: StoreError,
    401: AccessDenied,
    403: AccessDenied,
    405: Unsupported,
    413: Unsupported,
    416: RangeError,
    501: Unsupported,
    507: StoreFull,
    **dict.fromkeys((307, 408, 409, 425, 429, 500, 502, 503, 504), StoreUnavailable),
}

_CODE_OF_STATUS = {301: "PermanentRedirect"}
"""What an answer to HEAD, which has no body, means all the same."""

_HINTS = {
    "AccessDenied": "without the permission s3:ListBucket, S3 says this of an object that is not there too",
    NO_SUCH_BUCKET: "see the options bucket, endpoint_url and create_bucket",
    "AuthorizationHeaderMalformed": "see the option region",
    "PermanentRedirect": "see the options region and endpoint_url",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
    "SignatureDoesNotMatch": "the secret key is wrong, or a proxy changes requests",
}

_MEANING_OF_EXCEPTION: tuple[tuple[tuple[type[Exception], ...], type[StoreError]], ...] = (
    # Cut off, refused, unreachable, silent: the SDK's own requests for credentials, and all of ours.
    ((sdk.ConnectionError, sdk.HTTPClientError, sdk.MetadataRetrievalError, sdk.IncompleteReadError), StoreUnavailable),
    ((ssl.SSLCertVerificationError,), StoreError),
    ((OSError, HTTPException), StoreUnavailable),
    (
        (sdk.CredentialRetrievalError, sdk.LoginError, sdk.NoAuthTokenError, sdk.NoCredentialsError,
         sdk.PartialCredentialsError, sdk.RefreshWithMFAUnsupportedError, sdk.SSOError, sdk.TokenRetrievalError,
         sdk.UnknownCredentialError),
        AccessDenied,
    ),
    # Everything else that the SDK has is a wrong configuration or a wrong call.
    ((sdk.BotoCoreError,), StoreError),
)  # fmt: skip

_CAUGHT: tuple[type[Exception], ...] = (sdk.ClientError, *(cls for group, _ in _MEANING_OF_EXCEPTION for cls in group))

_CODE = re.compile(rb"<Code>\s*([^<]*?)\s*</Code>")
_MESSAGE = re.compile(rb"<Message>\s*([^<]*?)\s*</Message>")
_MAX_MESSAGE_CHARS = 300


def meaning_of(error: Exception) -> type[StoreError]:
    """Return what one of the exceptions of the SDK, of a socket or of `http.client` means."""
    if isinstance(error, sdk.ClientError):
        # Another service of the account, asked for credentials.
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return meaning_of_answer(status, error.response.get("Error", {}).get("Code", ""))
    return next(ours for theirs, ours in _MEANING_OF_EXCEPTION if isinstance(error, theirs))


def meaning_of_answer(status: int, code: str) -> type[StoreError]:
    """Return what a refusal means; the code says more than the status, where there is one."""
    return _MEANING_OF_CODE.get(code) or _MEANING_OF_STATUS.get(status, StoreError)


def refusal(status: int, body: bytes, *, op: str, key: str = "") -> StoreError:
    """Return the error that an answer which is no success stands for; the caller raises it."""
    code = code_of(body) or _CODE_OF_STATUS.get(status, "")
    return coded_refusal(status, code, _text(_MESSAGE.search(body)), op=op, key=key)


def coded_refusal(status: int, code: str, message: str, *, op: str, key: str = "") -> StoreError:
    """Return the error that a status, a code and a message of the server stand for."""
    said = ": ".join(word for word in (code or f"HTTP status {status}", message[:_MAX_MESSAGE_CHARS]) if word)
    hint = f"; {_HINTS[code]}" if code in _HINTS else ""
    return meaning_of_answer(status, code)(said + hint, backend=BACKEND, op=op, key=key)


def code_of(body: bytes) -> str:
    """Return the code in an error document, ``""`` if there is none."""
    return _text(_CODE.search(body))


@contextmanager
def store_errors(op: str, key: str = "") -> Iterator[None]:
    """Turn what the SDK, a socket or `http.client` raises into our errors; let anything unforeseen pass as it is."""
    try:
        yield
    except _CAUGHT as error:
        if isinstance(error, StoreError):
            raise
        raise meaning_of(error)(_reason(error), backend=BACKEND, op=op, key=key) from error


def _reason(error: Exception) -> str:
    said = str(error) or "the connection broke"
    hint = "; see the option ca_bundle" if isinstance(error, ssl.SSLCertVerificationError) else ""
    return f"{type(error).__name__}: {said}{hint}"


def _text(match: re.Match[bytes] | None) -> str:
    return unescape(match[1].decode("utf-8", "replace")) if match else ""
