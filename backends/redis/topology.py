"""Which server holds which key: one server, the master that sentinels name, or the slots of a cluster."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from hicache_storage.backends.redis.commands import encode
from hicache_storage.backends.redis.connect import Address, Connector, Login, Target
from hicache_storage.backends.redis.errors import BACKEND, ConnectionLost, ReplyError, store_error
from hicache_storage.backends.redis.options import RedisOptions, split_address
from hicache_storage.backends.redis.wire import Patience, Reply, Wire
from hicache_storage.errors import StoreError, StoreUnavailable

_ASK_AGAIN_AFTER_S = 1.0
_PART_OF_PATIENCE = 3


class Topology(ABC):
    """Where keys are, as far as is known. Thread-safe.

    Attributes:
        is_split: whether keys are on several servers, so that no command can name several of them.
    """

    is_split = False

    def find(self, patience: Patience) -> None:
        """It is known where keys are.

        Raises:
            StoreError, ConnectionLost: nobody could be asked.
        """

    @abstractmethod
    def address_of(self, key: bytes) -> Address | None:
        """Return the server that holds *key*; None if nobody does. Call `find` before."""

    @abstractmethod
    def servers(self) -> list[Address]:
        """Return the servers that together hold all keys. Call `find` before."""

    def suspect(self, address: Address) -> None:
        """A server failed or says that it is not in charge: find out again, where others can tell."""

    @abstractmethod
    def redirected(self, said_by: Address, text: str) -> Address | None:
        """Return where a ``MOVED`` or ``ASK`` answer leads; None where such an answer makes no sense."""


class Standalone(Topology):
    """One server, at one address."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def address_of(self, key: bytes) -> Address:  # noqa: ARG002 - it holds every key
        return self._address

    def servers(self) -> list[Address]:
        return [self._address]

    def redirected(self, said_by: Address, text: str) -> None:  # noqa: ARG002 - nobody redirects
        return None


class _Discovered(Topology):
    """What others are asked for: at first, and again after a failure, at most once a second.

    While one thread asks, others go on with what was known before, if anything was.
    """

    def __init__(self, start: Sequence[Address], connect: Callable[[Address, Patience], Wire]) -> None:
        self._start = list(start)
        self._connect = connect
        self._locks: dict[int, threading.Lock] = {}
        self._known = False
        self._stale = False
        self._asked_at_s = float("-inf")
        self._suspects: set[Address] = set()

    def find(self, patience: Patience) -> None:
        if self._known and not self._due():
            return
        # One lock for each process: a fork while another thread asks would leave the child a locked one.
        lock = self._locks.setdefault(os.getpid(), threading.Lock())
        if not lock.acquire(timeout=0 if self._known else patience.left_s()):
            if self._known:
                return
            raise ConnectionLost("another thread still asks where the servers are", silent=True)
        try:
            if not self._known or self._due():
                self._ask(patience)
        finally:
            lock.release()

    def suspect(self, address: Address) -> None:
        self._suspects.add(address)
        self._stale = True

    def _due(self) -> bool:
        return self._stale and time.monotonic() - self._asked_at_s > _ASK_AGAIN_AFTER_S

    def _ask(self, patience: Patience) -> None:
        """Ask one after the other until somebody knows, the suspects last."""
        candidates = list(dict.fromkeys([*self._others(), *self._start]))
        candidates.sort(key=self._suspects.__contains__)
        failures: list[str] = []
        cause: Exception | None = None
        for address in candidates:
            try:
                self._learn(address, self._answer(address, patience))
            except (ConnectionLost, StoreError, ReplyError) as error:
                failures.append(f"{address}: {Exception.__str__(error).removeprefix(f'{address}: ')}")
                cause = error
                continue
            self._known, self._stale, self._asked_at_s = True, False, time.monotonic()
            self._suspects.clear()
            return
        self._asked_at_s = time.monotonic()
        if not self._known:
            reason = "; ".join(failures)
            meaning = StoreUnavailable if cause is None else type(store_error(cause, op="connect"))
            raise meaning(reason, backend=BACKEND, op="connect") from cause

    def _answer(self, address: Address, patience: Patience) -> Reply:
        """Return what the server at *address* says; a silent one takes a part of the patience only."""
        part = Patience(min(patience.left_s(), patience.step_s / _PART_OF_PATIENCE))
        wire = self._connect(address, part)
        try:
            wire.send([self._question()])
            answer = wire.reply()
        finally:
            wire.close()
        if isinstance(answer, ReplyError):
            raise answer
        return answer

    @abstractmethod
    def _question(self) -> bytes:
        """Return the command that asks."""

    @abstractmethod
    def _learn(self, asked: Address, answer: Reply) -> None:
        """Take over what the answer says.

        Raises:
            ConnectionLost: it says nothing.
        """

    def _others(self) -> list[Address]:
        """Return further servers that can be asked, known from earlier answers."""
        return []


class SentinelMaster(_Discovered):
    """The server that sentinels call the master; after a failover, the new one."""

    def __init__(
        self, sentinels: Sequence[Address], service: str, connect: Callable[[Address, Patience], Wire]
    ) -> None:
        super().__init__(sentinels, connect)
        self._service = service
        self._master = sentinels[0]

    def address_of(self, key: bytes) -> Address:  # noqa: ARG002 - it holds every key
        return self._master

    def servers(self) -> list[Address]:
        return [self._master]

    def redirected(self, said_by: Address, text: str) -> None:  # noqa: ARG002 - nobody redirects
        return None

    def _question(self) -> bytes:
        return encode(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service.encode())

    def _learn(self, asked: Address, answer: Reply) -> None:  # noqa: ARG002 - a sentinel never means itself
        match answer:
            case [bytes(host), bytes(port)] if port.isdigit():
                self._master = Address(host.decode(errors="replace"), int(port))
            case _:
                reason = f"the sentinel knows no master named {self._service!r}"
                raise ConnectionLost(reason)


class Cluster(_Discovered):
    """The masters of a cluster and their slots."""

    is_split = True

    def __init__(self, start: Sequence[Address], connect: Callable[[Address, Patience], Wire]) -> None:
        super().__init__(start, connect)
        self._slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS

    def address_of(self, key: bytes) -> Address | None:
        address = self._slots[key_slot(key)]
        if address is None:
            self._stale = True  # Somebody may have been given the slot since.
        return address

    def servers(self) -> list[Address]:
        return sorted({address for address in self._slots if address is not None})

    def redirected(self, said_by: Address, text: str) -> Address | None:
        try:
            kind, slot, where = text.split(" ")[:3]
            host, _, port = where.rpartition(":")
            # Servers write an IPv6 address without the brackets by which its port can be told from it.
            address = Address(*split_address(f"[{_host(host, said_by)}]:{port}"))
            if kind == "MOVED":
                self._slots[int(slot)] = address
        except (ValueError, IndexError):
            return None
        return address

    def _others(self) -> list[Address]:
        return self.servers()

    def _question(self) -> bytes:
        return encode(b"CLUSTER", b"SLOTS")

    def _learn(self, asked: Address, answer: Reply) -> None:
        slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for entry in answer if isinstance(answer, list) else []:
            match entry:
                case [int(first), int(last), [host, int(port), *_], *_]:
                    name = host.decode(errors="replace") if isinstance(host, bytes) else ""
                    slots[first : last + 1] = [Address(_host(name, asked), port)] * (last + 1 - first)
                case _:
                    raise ConnectionLost("the answer to CLUSTER SLOTS cannot be read")
        if not any(slots):
            raise ConnectionLost("the node has no slots and knows nobody who does")
        self._slots = slots


def _host(name: str, said_by: Address) -> str:
    """Return the host that a node calls *name*; one that does not know its own means the one that was asked."""
    return said_by.host if name in ("", "?") else name.strip("[]")


def topology_of(options: RedisOptions, target: Target, connector: Connector) -> Topology:
    """Return the topology that the options speak of. Nobody is asked yet."""
    if options.mode == "standalone":
        return Standalone(target.start[0])
    if options.mode == "cluster":
        return Cluster(target.start, connector.connect)
    login = Login(options.sentinel_username, options.sentinel_password, 0)
    sentinels = Connector(options, login, tls=target.tls)
    return SentinelMaster(target.start, options.sentinel_service, sentinels.connect)
