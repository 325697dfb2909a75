"""Two small clients of an S3 server: signed requests on `http.client`, and boto3 in a pool of threads."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import boto3
from botocore.config import Config

from benchmarks.subject import timed
from benchmarks.subjects.striped import Striped
from benchmarks.workload import Workload
from hicache_storage.backends.s3.signing import UNSIGNED_PAYLOAD, Signer

REGION = "us-east-1"
_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Account:
    """A bucket on a server, and the keys that open it; what a `Signer` asks for credentials."""

    endpoint_url: str
    bucket: str
    access_key: str
    secret_key: str
    token: str | None = None

    def get_frozen_credentials(self) -> Account:
        return self


class Boto(Striped):
    """boto3 with a pool of connections, one a thread."""

    def __init__(self, account: Account, page_cache: str) -> None:
        self.version = boto3.__version__
        self.page_cache = page_cache
        self.calls = {
            "write": "boto3 put_object",
            "read": "boto3 get_object, StreamingBody.read",
            "ranged": "boto3 get_object with Range, StreamingBody.read",
            "exists": "boto3 head_object",
        }
        self._account = account

    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        account = self._account
        self._sdk = boto3.client(
            "s3",
            endpoint_url=account.endpoint_url,
            region_name=REGION,
            aws_access_key_id=account.access_key,
            aws_secret_access_key=account.secret_key,
            config=Config(
                max_pool_connections=workload.threads,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        kind = type(self).__name__.lower()
        self._keys = [f"{kind}/{workload.object_nbytes}/{n}" for n in range(workload.objects)]

    def exists(self) -> float:
        def ask(numbers: Sequence[int]) -> None:
            for number in numbers:
                self._sdk.head_object(Bucket=self._account.bucket, Key=self._keys[number])

        return timed(lambda: self._each_batch(ask))

    def wipe(self) -> None:
        for start in range(0, len(self._keys), 1000):
            objects = [{"Key": key} for key in self._keys[start : start + 1000]]
            self._sdk.delete_objects(Bucket=self._account.bucket, Delete={"Objects": objects, "Quiet": True})

    def release(self) -> None:
        self._sdk.close()
        super().release()

    def _write(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            body = bytes(self._source.views[number])
            self._sdk.put_object(Bucket=self._account.bucket, Key=self._keys[number], Body=body)

    def _read(self, numbers: Sequence[int], first_byte: int) -> None:
        span = {"Range": f"bytes={first_byte}-"} if first_byte else {}
        for number in numbers:
            answer = self._sdk.get_object(Bucket=self._account.bucket, Key=self._keys[number], **span)
            self._target.views[number][first_byte:] = answer["Body"].read()


class BareHttp(Boto):
    """One connection of `http.client` a thread, bodies received into place; boto3 only removes what was stored."""

    def __init__(self, account: Account, version: str, page_cache: str) -> None:
        super().__init__(account, page_cache)
        self.version = version
        self.calls = {
            "write": "http.client PUT, signed by this project's signer",
            "read": "http.client GET, HTTPResponse.readinto",
            "ranged": "http.client GET with Range, HTTPResponse.readinto",
            "exists": "boto3 head_object",
        }
        self._signer = Signer(account, REGION, "s3")
        self._host = account.endpoint_url.partition("//")[2]

    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        self._mine = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def release(self) -> None:
        for connection in self._connections:
            connection.close()
        super().release()

    def _write(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._answer("PUT", number, {}, self._source.views[number]).read()

    def _read(self, numbers: Sequence[int], first_byte: int) -> None:
        span = {"range": f"bytes={first_byte}-"} if first_byte else {}
        for number in numbers:
            answer = self._answer("GET", number, span, None)
            target = self._target.views[number][first_byte:]
            got = 0
            while got < len(target) and (more := answer.readinto(target[got:])):
                got += more
            answer.read()

    def _answer(
        self, method: str, number: int, headers: dict[str, str], body: memoryview | None
    ) -> http.client.HTTPResponse:
        path = f"/{self._account.bucket}/{self._keys[number]}"
        signed = self._signer.signed(method, path, {"host": self._host, **headers}, UNSIGNED_PAYLOAD)
        connection = self._connection()
        connection.request(method, path, body=body, headers=signed)
        answer = connection.getresponse()
        if answer.status >= 300:
            raise OSError(f"{method} of an object ended with status {answer.status}")
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        mine: http.client.HTTPConnection | None = self._mine.__dict__.get("connection")
        if mine is None:
            mine = http.client.HTTPConnection(self._host, timeout=_TIMEOUT_S)
            self._mine.connection = mine
            self._connections.append(mine)
        return mine
