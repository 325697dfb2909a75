"""A way around the store to what the servers hold."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import redis

from hicache_storage.backends.redis import RedisOptions
from hicache_storage.config import Secret

PATIENT_S = 60.0
"""A deadline that a busy machine does not reach."""

redis_options: Callable[..., RedisOptions] = RedisOptions
"""The options' class, for values that are collected first."""


class RedisService:
    """A server, and redis-py's own client as the back door."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        self.url = url
        self.client = client
        self._numbers = itertools.count()

    def options(self, **values: object) -> RedisOptions:
        """Return options for a store that is empty: under a prefix that no other has."""
        given: dict[str, object] = {
            "url": Secret(self.url),
            "key_prefix": f"t{next(self._numbers)}:",
            "io_threads": 4,
            "deadline_s": PATIENT_S,
        }
        return redis_options(**(given | values))

    def plant(self, options: RedisOptions, key: str, body: bytes) -> None:
        self.client.set(redis_key(options, key), body)

    def observe(self, options: RedisOptions, key: str) -> bytes | None:
        """Return the object's bytes, put together from its chunks if it has some."""
        name = redis_key(options, key)
        if self.client.type(name) != b"hash":
            return self._value(name)
        nonce, nbytes, chunk_nbytes = self.client.hmget(name, ["nonce", "nbytes", "chunk_nbytes"])
        assert isinstance(nonce, bytes)
        count = -(-int(nbytes or 0) // int(chunk_nbytes or 1))
        return b"".join(self._value(b"{%b}%b:%d" % (name, nonce, i)) or b"" for i in range(count))

    def _value(self, name: bytes) -> bytes | None:
        value = self.client.get(name)
        assert not isinstance(value, str)
        return value

    def clear(self) -> None:
        """Nothing is on the server any more; a listing works through all that others leave behind."""
        self.client.flushall()

    def wait_for_end_of(self, client_name: str) -> None:
        """Every command of a client that is gone was carried out: a server works off what a killed one had sent."""
        deadline = time.monotonic() + PATIENT_S
        while any(entry["name"] == client_name for entry in self._clients()):
            assert time.monotonic() < deadline, f"{client_name} is still connected"

    def _clients(self) -> list[dict[str, str]]:
        if isinstance(self.client, redis.RedisCluster):
            answers = self.client.client_list(target_nodes=redis.RedisCluster.PRIMARIES)
            return [entry for entries in answers.values() for entry in entries]
        return self.client.client_list()

    def names(self, options: RedisOptions) -> set[bytes]:
        """Return every Redis key of the store, chunks included."""
        return {key for key in self.client.scan_iter(count=1000) if options.key_prefix.encode() in key}


def redis_key(options: RedisOptions, key: str) -> bytes:
    escaped = key.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return (options.key_prefix + escaped).encode()
