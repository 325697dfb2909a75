"""The SDK's part: whose account it is, where the bucket is, and which authorities are trusted."""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.httpsession import get_cert_path
from botocore.loaders import Loader

from hicache_storage.backends.s3.dial import Proxy, Route
from hicache_storage.backends.s3.options import S3Options
from hicache_storage.backends.s3.signing import Credentials, Signer
from hicache_storage.errors import ConfigError

_DEFAULT_REGION = "us-east-1"
_PORTS = {"http": 80, "https": 443}


_REQUEST = "before-send.s3.HeadObject"

_SCOPE = re.compile(r"Credential=.+/\d{8}/([^/]+)/([^/]+)/aws4_request,")


class _Request(Protocol):
    """What is used of a request of the SDK that is signed and about to be sent."""

    url: str
    headers: Mapping[str, str | bytes]


class _Events(Protocol):
    def register(self, event: str, handler: Callable[..., None]) -> None: ...


class _Meta(Protocol):
    events: _Events


class _Client(Protocol):
    """What is used of the SDK's client."""

    meta: _Meta

    def head_object(self, *, Bucket: str, Key: str) -> object: ...  # noqa: N803 - the SDK's names


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the bucket is and how a request is signed for it.

    Attributes:
        authority: the ``Host`` header.
        base_path: what stands before an object's name, percent-encoded, with slashes at both ends.
    """

    route: Route
    authority: str
    base_path: str
    signer: Signer
    region: str


def find_endpoint(options: S3Options) -> Endpoint:
    """Return the bucket's endpoint as the SDK resolves it. Sends nothing, unless credentials must be fetched.

    The SDK is let make a request and stopped before it sends it. The request shows all of its decisions: the host
    for this region and way of addressing, the path of the bucket, region and service in the signature. (A
    presigned URL would not do: for those the SDK prefers another host.)

    Raises:
        ConfigError: no credentials, or something that the SDK cannot work with.
    """
    try:
        core = botocore.session.get_session()
        core.register_component("data_loader", _models())
        session = boto3.Session(
            botocore_session=core,
            profile_name=options.profile,
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key.reveal() if options.secret_access_key else None,
            aws_session_token=options.session_token.reveal() if options.session_token else None,
        )
        credentials: Credentials | None = session.get_credentials()
        if credentials is None:
            raise ConfigError(
                "s3: no credentials; give access_key_id and secret_access_key, or any of the SDK's usual sources"
            )
        client: _Client = session.client(
            "s3",
            region_name=options.region or core.get_config_variable("region") or _DEFAULT_REGION,
            endpoint_url=options.endpoint_url,
            config=Config(
                signature_version="s3v4", s3={"addressing_style": options.addressing}, retries={"total_max_attempts": 1}
            ),
        )
        url, authorization = _intercepted(client, options.bucket)
        bundle = options.ca_bundle or core.get_config_variable("ca_bundle") or get_cert_path(verify=True)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"s3: the SDK refuses the options: {error}") from error
    scope = _SCOPE.search(authorization)
    if scope is None:
        raise ConfigError("s3: the SDK signs with something else than Signature Version 4")
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    tls = _trust(str(bundle), verify=options.verify_tls) if secure else None
    return _endpoint_of(parts, tls, Signer(credentials, scope[1], scope[2]), scope[1])


def _intercepted(client: _Client, bucket: str) -> tuple[str, str]:
    """Return URL and Authorization of the SDK's request for the object ``-``, which is not sent."""

    class Intercepted(Exception):
        """No error: the way out of the SDK."""

    requests: list[_Request] = []

    def intercept(request: _Request, **_: object) -> None:
        requests.append(request)
        raise Intercepted

    client.meta.events.register(_REQUEST, intercept)
    with suppress(Intercepted):
        client.head_object(Bucket=bucket, Key="-")
    authorization = requests[0].headers["Authorization"]
    return requests[0].url, authorization if isinstance(authorization, str) else authorization.decode()


@functools.cache
def _models() -> Loader:
    """Return what the SDK knows of its services: half of the time to make a client goes into reading it."""
    return Loader()


def _endpoint_of(parts: SplitResult, tls: ssl.SSLContext | None, signer: Signer, region: str) -> Endpoint:
    host = parts.hostname or ""
    return Endpoint(
        route=Route(host, parts.port or _PORTS[parts.scheme], tls, _proxy_for(parts.scheme, host)),
        authority=parts.netloc,
        base_path=parts.path.removesuffix("-"),
        signer=signer,
        region=region,
    )


def _trust(bundle: str, *, verify: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=bundle)
    except OSError as error:
        raise ConfigError(f"s3 option ca_bundle = {bundle!r}: {error}; expected a PEM file") from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy_for(scheme: str, host: str) -> Proxy | None:
    """Return the proxy that the environment names for this host, as the SDK would use it."""
    address = getproxies().get(scheme)
    if not address or proxy_bypass(host):
        return None
    parts = urlsplit(address if "//" in address else f"//{address}")
    if not parts.hostname:
        raise ConfigError(f"s3: the {scheme} proxy of the environment has no host name")
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    return Proxy(parts.hostname, parts.port or _PORTS["http"], user)
