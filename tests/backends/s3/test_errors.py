"""What each refusal and each exception means."""

from __future__ import annotations

import inspect
import ssl
from http.client import IncompleteRead, RemoteDisconnected

import pytest
from botocore import exceptions as sdk

from hicache_storage.backends.s3 import S3Store
from hicache_storage.backends.s3.errors import meaning_of, meaning_of_answer, store_errors
from hicache_storage.errors import AccessDenied, RangeError, StoreError, StoreFull, StoreUnavailable, Unsupported
from hicache_storage.types import ObjectWrite, RangeRead
from tests.backends.s3.stub import Stub, refused

pytest_plugins = ["tests.backends.s3.fixtures"]

# What a wrong configuration or a wrong call makes the SDK raise. A class that is new here wants a decision:
# is it the network, are it the credentials, or does it belong in this list?
_CONFIGURATION = """
AliasConflictParameterError ApiVersionNotFoundError AwsChunkedWrapperError BaseEndpointResolverError BotoCoreError
CapacityNotAvailableError ChecksumError ConfigNotFound ConfigParseError DataNotFoundError EndpointProviderError
EndpointResolutionError EndpointVariantError FlexibleChecksumError InfiniteLoopConfigError InvalidChecksumConfigError
InvalidConfigError InvalidDNSNameError InvalidDefaultsMode InvalidEndpointConfigurationError
InvalidEndpointDiscoveryConfigurationError InvalidExpressionError InvalidHostLabelError InvalidIMDSEndpointError
InvalidIMDSEndpointModeError InvalidMaxRetryAttemptsError InvalidProxiesConfigError InvalidRegionError
InvalidRetryConfigurationError InvalidRetryModeError InvalidS3AddressingStyleError
InvalidS3UsEast1RegionalEndpointConfigError InvalidSTSRegionalEndpointsConfigError MD5UnavailableError
MissingDependencyException MissingParametersError NoRegionError OperationNotPageableError PaginationError
ParamValidationError ProfileNotFound RangeError ServiceNotInRegionError StubAssertionError StubResponseError
UnStubbedResponseError UnknownClientMethodError UnknownEndpointError UnknownEndpointResolutionBuiltInName
UnknownFIPSEndpointError UnknownKeyError UnknownParameterError UnknownRegionError UnknownServiceError
UnknownServiceStyle UnknownSignatureVersionError UnknownTokenProviderError UnseekableStreamError
UnsupportedOutpostResourceError UnsupportedS3AccesspointConfigurationError UnsupportedS3ArnError
UnsupportedS3ConfigurationError UnsupportedS3ControlArnError UnsupportedS3ControlConfigurationError
UnsupportedServiceProtocolsError UnsupportedSignatureVersionError ValidationError WaiterConfigError WaiterError
"""

# No BotoCoreError: raised by the SDK's own tools only.
_ELSEWHERE = {"ClientError", "EventStreamError", "MissingServiceIdError", "UndefinedModelAttributeError"}


def test_every_exception_of_the_sdk_is_placed() -> None:
    classes = [
        cls for _, cls in inspect.getmembers(sdk, inspect.isclass)
        if cls.__module__ == sdk.__name__ and issubclass(cls, Exception) and not issubclass(cls, Warning)
    ]  # fmt: skip

    undecided = {
        cls.__name__ for cls in classes
        if cls.__name__ not in _ELSEWHERE and meaning_of(cls.__new__(cls)) is StoreError
    }  # fmt: skip

    assert undecided == set(_CONFIGURATION.split()) & {cls.__name__ for cls in classes}


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (ConnectionRefusedError(), StoreUnavailable),
        (TimeoutError(), StoreUnavailable),
        (ssl.SSLEOFError(), StoreUnavailable),
        (ssl.SSLCertVerificationError(), StoreError),
        (IncompleteRead(b""), StoreUnavailable),
        (RemoteDisconnected("gone"), StoreUnavailable),
        (sdk.ReadTimeoutError(endpoint_url="u"), StoreUnavailable),
        (sdk.EndpointConnectionError(endpoint_url="u"), StoreUnavailable),
        (sdk.NoCredentialsError(), AccessDenied),
        (sdk.CredentialRetrievalError(provider="p", error_msg="m"), AccessDenied),
        (sdk.ClientError({"Error": {"Code": "ExpiredToken"}}, "AssumeRole"), AccessDenied),
        (sdk.ClientError({"ResponseMetadata": {"HTTPStatusCode": 503}}, "AssumeRole"), StoreUnavailable),
        (sdk.ParamValidationError(report="r"), StoreError),
    ],
)
def test_an_exception_becomes_what_it_means(error: Exception, meaning: type[StoreError]) -> None:
    with pytest.raises(StoreError) as caught, store_errors("read", "k"):
        raise error

    assert type(caught.value) is meaning
    assert caught.value.__cause__ is error
    assert (caught.value.backend, caught.value.op, caught.value.key) == ("s3", "read", "k")


def test_the_unforeseen_passes_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), store_errors("read"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("status", "code", "meaning"),
    [
        (403, "AccessDenied", AccessDenied),
        (403, "", AccessDenied),
        (403, "RequestTimeTooSkewed", AccessDenied),
        (400, "ExpiredToken", AccessDenied),
        (503, "SlowDown", StoreUnavailable),
        (503, "", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (429, "TooManyRequests", StoreUnavailable),
        (400, "RequestTimeout", StoreUnavailable),
        (400, "BadDigest", StoreUnavailable),
        (507, "", StoreFull),
        (507, "XMinioStorageFull", StoreFull),
        (403, "QuotaExceeded", StoreFull),
        (416, "InvalidRange", RangeError),
        (400, "EntityTooLarge", Unsupported),
        (403, "InvalidObjectState", Unsupported),
        (501, "NotImplemented", Unsupported),
        (404, "NoSuchBucket", StoreError),
        (301, "PermanentRedirect", StoreError),
        (400, "AuthorizationHeaderMalformed", StoreError),
        (418, "", StoreError),
    ],
)
def test_a_refusal_becomes_what_it_means(status: int, code: str, meaning: type[StoreError]) -> None:
    assert meaning_of_answer(status, code) is meaning


@pytest.mark.parametrize(
    ("status", "code", "meaning"),
    [(403, "AccessDenied", AccessDenied), (503, "SlowDown", StoreUnavailable), (507, "", StoreFull)],
)
def test_every_operation_says_why_it_was_refused(stub: Stub, status: int, code: str, meaning: type[StoreError]) -> None:
    stub.script = lambda seen: refused(status, code, "the &quot;reason&quot;")
    with S3Store(stub.options()) as store:
        for call in (
            lambda: store.write("k", [b"x"]),
            lambda: store.read_into("k", 0, [bytearray(1)]),
            lambda: store.stat("k"),
            lambda: store.delete("k"),
            lambda: list(store.list_keys()),
        ):
            with pytest.raises(meaning) as caught:
                call()

            assert caught.value.retryable is (meaning is StoreUnavailable)


def test_a_refusal_says_what_the_server_said(stub: Stub) -> None:
    stub.script = lambda seen: refused(503, "SlowDown", "Reduce your request rate &amp; wait.")

    with S3Store(stub.options()) as store, pytest.raises(StoreUnavailable) as caught:
        store.read_into("k", 0, [bytearray(1)])

    assert str(caught.value) == "SlowDown: Reduce your request rate & wait. (backend=s3 op=read key=k)"


def test_a_missing_bucket_is_no_miss(stub: Stub) -> None:
    stub.script = lambda seen: refused(404, "NoSuchBucket")

    with S3Store(stub.options()) as store:
        errors = [
            store.read_many([RangeRead("k", 0, [bytearray(1)])])[0].error,
            store.write_many([ObjectWrite("k", [b"x"])])[0].error,
            store.exists_many(["k"])[0].error,
        ]

    assert [type(error) for error in errors] == [StoreError] * 3
    assert all("create_bucket" in str(error) for error in errors)
