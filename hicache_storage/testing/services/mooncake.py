"""A Mooncake cluster on this machine: one master and one store node, from the SDK's package."""

from __future__ import annotations

import importlib.util
import json
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from hicache_storage.testing.services.process import ReservedPort, ServiceProcess, answers

HOW_TO_GET = "pip install mooncake-transfer-engine-non-cuda; on Debian and Ubuntu also apt-get install -y libibverbs1"

LEAST_MEMORY_NBYTES = 16 << 20
"""What a node must have at least."""


class MooncakeService:
    """A master and a node that holds *memory_nbytes*. Use as a context manager.

    `master` and `node` are processes of their own: kill, pause and start them one by one. A node takes
    up a new master by itself; objects end with either of the two.
    """

    def __init__(
        self,
        memory_nbytes: int = 256 << 20,
        *,
        lease_ms: int = 1000,
        abandoned_after_s: int = 1,
        eviction_ratio: float = 0.9,
        silent_after_s: int = 10,
    ) -> None:
        """Describe a cluster; `start` runs it.

        Args:
            memory_nbytes: memory of the node, at least 16 MiB.
            lease_ms: how long whoever has looked an object up may count on it.
            abandoned_after_s: when the name of a write that was never ended can be written again; by default
                of the master this is 30 s.
            silent_after_s: after how long without a sign of life a node and its objects are given up.
            eviction_ratio: share of the memory above which the master evicts; 1 = only where a write finds no room.
        """
        self._ports = [ReservedPort() for _ in range(3)]
        self.rpc_port, self.metrics_port, self._metadata_port = (port.number for port in self._ports)
        self._lease_ms = lease_ms
        self._abandoned_after_s = abandoned_after_s
        self._eviction_ratio = eviction_ratio
        self._silent_after_s = silent_after_s
        self.master = ServiceProcess("mooncake-master", self._master_command, ready=self._master_ready)
        self.node = ServiceProcess(
            "mooncake-node",
            lambda _: [sys.executable, "-m", "hicache_storage.backends.mooncake.node"],
            ready=self._node_ready,
            environment=self.environment | {"MOONCAKE_GLOBAL_SEGMENT_SIZE": str(memory_nbytes)},
        )

    @staticmethod
    def available() -> bool:
        """Whether the programs are installed and can be loaded."""
        return _master_program() is not None

    @property
    def options(self) -> Mapping[str, object]:
        """Options of a `MooncakeStore` that uses this cluster."""
        return {
            "master_server_address": f"127.0.0.1:{self.rpc_port}",
            "metadata_server": f"http://127.0.0.1:{self._metadata_port}/metadata",
            "local_hostname": "127.0.0.1",
            "master_metrics_port": self.metrics_port,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same for Mooncake's own variables."""
        return {
            "MOONCAKE_MASTER": f"127.0.0.1:{self.rpc_port}",
            "MOONCAKE_TE_META_DATA_SERVER": f"http://127.0.0.1:{self._metadata_port}/metadata",
            "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1",
            "MOONCAKE_PROTOCOL": "tcp",
        }

    def start(self) -> Self:
        """Run both and return when the node's memory can be used.

        Raises:
            ConfigError: the SDK is not installed.
            StoreUnavailable: one of them ended or did not answer in time.
        """
        try:
            self.master.start()
            self.node.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End both; what they hold is lost in any case. Calling it again does nothing."""
        for process in (self.node, self.master):
            process.kill()
            process.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _master_command(self, _folder: Path) -> list[str]:
        flags: dict[str, object] = {
            "rpc_address": "127.0.0.1",
            "rpc_port": self.rpc_port,
            "metrics_host": "127.0.0.1",
            "metrics_port": self.metrics_port,
            "enable_http_metadata_server": "true",
            "http_metadata_server_host": "127.0.0.1",
            "http_metadata_server_port": self._metadata_port,
            "default_kv_lease_ttl": f"{self._lease_ms}ms",
            "put_start_discard_timeout_sec": self._abandoned_after_s,
            "put_start_release_timeout_sec": self._abandoned_after_s + 1,
            "eviction_high_watermark_ratio": self._eviction_ratio,
            "client_ttl": self._silent_after_s,
            "enable_metric_reporting": "false",
            "logtostderr": "true",
        }
        return [_master_program() or "mooncake_master", *[f"--{name}={value}" for name, value in flags.items()]]

    def _master_ready(self) -> bool:
        return (
            answers(self.rpc_port) and answers(self._metadata_port) and b'"service_ready":true' in self._ask("health")
        )

    def _node_ready(self) -> bool:
        try:
            return any(
                segment["status"] == "OK" for segment in json.loads(self._ask("get_segments_detail"))["segments"]
            )
        except (ValueError, KeyError):
            return False

    def _ask(self, path: str) -> bytes:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.metrics_port}/{path}", timeout=1) as response:
                answer: bytes = response.read()
        except OSError:
            return b""
        return answer


def _master_program() -> str | None:
    """Return the server itself: the command of that name starts it as a child, which would outlive a kill."""
    package = importlib.util.find_spec("mooncake")
    if package is None or package.origin is None:
        return None
    program = Path(package.origin).with_name("mooncake_master")
    return str(program) if program.exists() else None
