"""Listing through the master's HTTP server; the SDK has no call for it. It leases nothing."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import msgspec

from hicache_storage.backends.mooncake.errors import unavailable
from hicache_storage.backends.mooncake.names import Names
from hicache_storage.backends.mooncake.pieces import TAIL
from hicache_storage.types import ObjectInfo

_URL_NBYTES = 4000


class _Copy(msgspec.Struct):
    size_: int = 0
    object_size: int = 0


class _Answer(msgspec.Struct):
    ok: bool
    values: list[_Copy] | None = None
    disk_values: list[_Copy] | None = None


class _Answers(msgspec.Struct):
    data: dict[str, _Answer]


def objects(host: str, port: int, names: Names, prefix: str, deadline_s: float) -> Iterator[ObjectInfo]:
    """Yield the objects whose keys start with *prefix* and that are complete.

    Raises:
        StoreUnavailable: the master's HTTP server does not answer, or another one does; each of its answers
            may take *deadline_s*.
    """
    master = _Master(host, port, deadline_s)
    # A key's first bytes may be encoded differently alone than within the key, so that keys are compared, not names.
    keys = {name: key for name in master.all_names() if (key := names.key(name)) is not None and key.startswith(prefix)}
    for some in _batches(list(keys)):
        for name, nbytes in master.sizes(some).items():
            yield ObjectInfo(keys[name], nbytes - len(TAIL))


class _Master:
    def __init__(self, host: str, port: int, deadline_s: float) -> None:
        self._host = host
        self._port = port
        self._server = f"the master's HTTP server {host}:{port} (option master_metrics_port)"
        self._deadline_s = deadline_s

    def all_names(self) -> list[str]:
        return self._get("/get_all_keys").decode("utf-8", "replace").splitlines()

    def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Return the sizes of those that are there and complete."""
        body = self._get("/batch_query_keys?keys=" + ",".join(quote(name, safe="") for name in names))
        try:
            answers = msgspec.json.decode(body, type=_Answers).data
        except msgspec.DecodeError as error:
            raise unavailable(f"{self._server} answers nonsense: {error}", op="list") from error
        sizes = {}
        for name, answer in answers.items():
            copies = [*(answer.values or ()), *(answer.disk_values or ())]
            if answer.ok and copies:
                sizes[name] = copies[0].size_ or copies[0].object_size
        return sizes

    def _get(self, path: str) -> bytes:
        ends_at = time.monotonic() + self._deadline_s
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._deadline_s)
        parts: list[bytes] = []
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            while part := response.read1(1 << 20):
                parts.append(part)
                if time.monotonic() > ends_at:
                    raise TimeoutError("its answer does not end")
        except (OSError, http.client.HTTPException) as error:
            raise unavailable(f"{self._server} does not answer: {error!r}", op="list") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise unavailable(f"{self._server} answers {response.status} to {path[:60]}", op="list")
        return b"".join(parts)


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield *names* in groups whose query string stays well below what HTTP servers take."""
    batch: list[str] = []
    nbytes = 0
    for name in names:
        nbytes += 3 * len(name)
        if batch and nbytes > _URL_NBYTES:
            yield batch
            batch, nbytes = [], 3 * len(name)
        batch.append(name)
    if batch:
        yield batch
