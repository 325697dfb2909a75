"""Our signatures are those of the SDK."""

from __future__ import annotations

import random
import string

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from hicache_storage.backends.s3.signing import EMPTY_PAYLOAD, UNSIGNED_PAYLOAD, Signer

_HOST = "bucket.s3.example.org:8443"


@pytest.mark.parametrize("token", [None, "token/of+temporary=credentials"])
@pytest.mark.parametrize("payload", [UNSIGNED_PAYLOAD, EMPTY_PAYLOAD])
def test_a_signature_is_the_one_that_the_sdk_makes(rng: random.Random, token: str | None, payload: str) -> None:
    credentials = Credentials("AKIDEXAMPLE", "secret/with+signs", token)
    signer = Signer(credentials, "eu-central-1", "s3")
    for _ in range(50):
        method = rng.choice(["GET", "PUT", "HEAD", "DELETE", "POST"])
        target = _random_target(rng)
        extra = {f"x-amz-{_word(rng)}": f"  {_word(rng)}   {_word(rng)} " for _ in range(rng.randrange(4))}

        ours = signer.signed(method, target, {"host": _HOST, "range": "bytes=0-1", **extra}, payload)

        assert ours["authorization"] == _authorization(credentials, method, target, ours)


def test_the_key_of_one_secret_is_not_used_for_another() -> None:
    class Renewed:
        secret = "first"

        def get_frozen_credentials(self) -> Credentials:
            return Credentials("AKIDEXAMPLE", self.secret)

    renewed = Renewed()
    signer = Signer(renewed, "us-east-1", "s3")
    signer.signed("GET", "/", {"host": _HOST}, EMPTY_PAYLOAD)
    renewed.secret = "second"

    ours = signer.signed("GET", "/", {"host": _HOST}, EMPTY_PAYLOAD)

    expected = _authorization(Credentials("AKIDEXAMPLE", "second"), "GET", "/", ours, region="us-east-1")
    assert ours["authorization"] == expected


def _authorization(
    credentials: Credentials, method: str, target: str, signed: dict[str, str], region: str = "eu-central-1"
) -> str:
    """Return what the SDK's signer makes of the same request at the same second."""
    headers = {name: value for name, value in signed.items() if name not in ("authorization", "x-amz-date", "host")}
    request = AWSRequest(method, f"https://{_HOST}{target}", headers=headers)
    request.context["timestamp"] = signed["x-amz-date"]
    signer = S3SigV4Auth(credentials, "s3", region)
    request.headers["X-Amz-Date"] = signed["x-amz-date"]
    canonical = signer.canonical_request(request)
    signature = signer.signature(signer.string_to_sign(request, canonical), request)
    names = signer.signed_headers(signer.headers_to_sign(request))
    return f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={names}, Signature={signature}"


def _random_target(rng: random.Random) -> str:
    path = "/" + "/".join(_word(rng) for _ in range(rng.randrange(1, 4))) + rng.choice(["", "%21", "%20x", "~"])
    query = sorted(f"{_word(rng)}={rng.choice(['', _word(rng), '%2F%3D'])}" for _ in range(rng.randrange(3)))
    return f"{path}?{'&'.join(query)}" if query else path


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase + string.digits + "-_", k=rng.randrange(1, 12)))
