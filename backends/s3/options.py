"""The s3 backend's options."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from hicache_storage.config import Secret, check_fields, option, parse_nbytes, parse_seconds, whole_number
from hicache_storage.errors import ConfigError
from hicache_storage.secret_url import parse_secret_url

_MAX_IO_THREADS = 256
_MIN_PART_NBYTES = 5 << 20
_MAX_PART_NBYTES = 5 << 30
_SSE_C_KEY_NBYTES = 32

Checksums = Literal["when_required", "when_supported"]


def parse_part_nbytes(value: object) -> int:
    """Return the size of a part from ``"16MiB"``, within what S3 allows."""
    nbytes = parse_nbytes(value)
    if not _MIN_PART_NBYTES <= nbytes <= _MAX_PART_NBYTES:
        raise ValueError("expected a size from 5MiB to 5GiB")
    return nbytes


def parse_threshold_nbytes(value: object) -> int:
    """Return the size of the largest object that goes in one request, within what S3 allows."""
    nbytes = parse_nbytes(value)
    if nbytes > _MAX_PART_NBYTES:
        raise ValueError("expected a size up to 5GiB")
    return nbytes


def one_of(*choices: str) -> Callable[[object], str]:
    """Return a parser that accepts *choices*."""

    def parse(value: object) -> str:
        if value not in choices:
            reason = f"expected {' or '.join(choices)}"
            raise ValueError(reason)
        return str(value)

    return parse


_parse_checksums = one_of("when_required", "when_supported")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Options of `S3Store`. Whatever is not given here comes from the SDK's usual chain and files."""

    url: Secret | None = option(
        None, doc="s3://bucket/prefix, in place of the options bucket and prefix", parse=parse_secret_url
    )
    bucket: str = option("", doc="name of the bucket", aliases=("bucket_name", "s3_bucket"))
    prefix: str = option("", doc="what stands before every object's name, such as team/kv")
    endpoint_url: str | None = option(
        None,
        doc="address of the service, such as http://127.0.0.1:9000; none = AWS, or what the SDK's configuration names",
        aliases=("endpoint", "s3_endpoint"),
    )
    region: str | None = option(
        None, doc="region of the bucket; none = the SDK's, else us-east-1", aliases=("region_name", "s3_region")
    )
    addressing: Literal["auto", "path", "virtual"] = option(
        "auto",
        doc="where the bucket's name stands: path = in the path, virtual = in the host name, auto = as the SDK decides",
        parse=one_of("auto", "path", "virtual"),
        aliases=("addressing_style",),
    )
    profile: str | None = option(None, doc="profile of the SDK's configuration files", aliases=("profile_name",))
    access_key_id: str | None = option(None, doc="access key; none = the SDK's chain", aliases=("aws_access_key_id",))
    secret_access_key: Secret | None = option(
        None, doc="secret of access_key_id", aliases=("aws_secret_access_key", "secret_key")
    )
    session_token: Secret | None = option(None, doc="token of temporary credentials", aliases=("aws_session_token",))
    ca_bundle: Path | None = option(None, doc="PEM file of the authorities to trust; none = the SDK's")
    verify_tls: bool = option(True, doc="check the server's certificate")  # noqa: FBT003 - a default
    deadline_s: float = option(
        5.0, doc="most seconds that one operation takes, and that a silent server costs a batch", parse=parse_seconds
    )
    io_threads: int = option(
        16,
        doc="most requests of one batch at once",
        parse=whole_number(1, _MAX_IO_THREADS),
        aliases=("max_pool_connections", "s3_num_io_threads"),
    )
    multipart_threshold_nbytes: int = option(
        64 << 20,
        doc="larger objects are written in parts",
        parse=parse_threshold_nbytes,
        aliases=("multipart_threshold",),
    )
    part_nbytes: int = option(16 << 20, doc="size of a part", parse=parse_part_nbytes, aliases=("multipart_chunksize",))
    coalesce_gap_nbytes: int = option(
        64 << 10, doc="neighbouring ranges of one object this far apart are read in one request", parse=parse_nbytes
    )
    conditional_put: Literal["auto", "always", "never"] = option(
        "auto",
        doc="write with If-None-Match, which saves a request per new object; auto = asks the server once, with an "
        "object that it removes again; never = looks before it writes",
        parse=one_of("auto", "always", "never"),
    )
    request_checksum_calculation: Checksums = option(
        "when_required", doc="send a CRC-32 with what is written, or only where S3 demands one", parse=_parse_checksums
    )
    response_checksum_validation: Checksums = option(
        "when_required",
        doc="check the CRC-32 of objects that are read whole, where the server has one",
        parse=_parse_checksums,
    )
    sign_payload: bool = option(
        False,  # noqa: FBT003 - a default
        doc="put the SHA-256 of what is written into the signature, for services that refuse UNSIGNED-PAYLOAD",
    )
    storage_class: str | None = option(None, doc="storage class of new objects, such as STANDARD_IA")
    sse: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = option(
        None,
        doc="encryption by the server",
        parse=one_of("AES256", "aws:kms", "aws:kms:dsse"),
        aliases=("server_side_encryption",),
    )
    sse_kms_key_id: str | None = option(None, doc="key of the key service that sse uses")
    sse_customer_key: Secret | None = option(
        None, doc="32 bytes in base64: the server encrypts with this key and does not keep it (SSE-C)"
    )
    create_bucket: bool = option(False, doc="create the bucket if it is missing, for tests and demos")  # noqa: FBT003 - a default

    def __post_init__(self) -> None:
        check_fields(self, "s3")
        bucket, prefix = self._place()
        object.__setattr__(self, "bucket", bucket)
        object.__setattr__(self, "prefix", prefix)
        self._check()

    def _place(self) -> tuple[str, str]:
        """Return bucket and prefix, from the URL or from the options of these names."""
        bucket, prefix = self.bucket, self.prefix.strip("/")
        if self.url is not None:
            parts = urlsplit(self.url.reveal())
            if parts.scheme != "s3" or "@" in parts.netloc or ":" in parts.netloc:
                # Not shown: what stands before an @ may be a secret.
                raise ConfigError("s3 option url: expected s3://bucket/prefix; credentials are options of their own")
            named, path = parts.netloc, unquote(parts.path).strip("/")
            if (bucket and bucket != named) or (prefix and prefix != path):
                raise ConfigError("s3 options bucket and prefix contradict the URL")
            bucket, prefix = named, path
        return bucket, prefix

    def _check(self) -> None:
        if not self.bucket:
            raise ConfigError("s3 option bucket is required: s3://bucket/prefix, or the name of the bucket")
        if self.bucket.endswith("--x-s3"):
            raise ConfigError(f"s3 option bucket = {self.bucket!r}: directory buckets (S3 Express) are not supported")
        if any(part in ("", ".", "..") for part in self.prefix.split("/")) and self.prefix:
            raise ConfigError(
                f"s3 option prefix = {self.prefix!r}: expected names between single slashes, such as team/kv"
            )
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigError("s3 options access_key_id and secret_access_key: expected both or none")
        if self.session_token is not None and self.access_key_id is None:
            raise ConfigError("s3 option session_token: expected access_key_id and secret_access_key with it")
        if self.sse_kms_key_id is not None and not str(self.sse).startswith("aws:kms"):
            raise ConfigError("s3 option sse_kms_key_id: expected sse = aws:kms with it")
        if self.sse_customer_key is not None and (self.sse is not None or not _is_sse_c_key(self.sse_customer_key)):
            raise ConfigError("s3 option sse_customer_key: expected 32 bytes in base64, and no sse beside it")
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)


def _check_endpoint(endpoint_url: str) -> None:
    try:
        parts = urlsplit(endpoint_url)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits or "@" in parts.netloc or parts.query:
        # Not shown: what stands before an @ or behind a ? may be a secret.
        raise ConfigError("s3 option endpoint_url: expected http://host:port or https://host:port")


def _is_sse_c_key(key: Secret) -> bool:
    try:
        return len(base64.b64decode(key.reveal(), validate=True)) == _SSE_C_KEY_NBYTES
    except (binascii.Error, ValueError):
        return False
