"""The Mooncake backend's options, by the names that Mooncake and SGLang use."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from hicache_storage.config import check_fields, option, parse_nbytes, whole_number
from hicache_storage.errors import ConfigError

_MIN_LOCAL_BUFFER_NBYTES = 1 << 20
_MAX_DEADLINE_S = 30.0


def parse_segment_nbytes(value: object) -> int:
    """Return a number of bytes; as everywhere in Mooncake, ``4gb`` means 4 GiB."""
    if isinstance(value, str):
        value = re.sub(r"(?i)([kmgtp])b?\s*$", r"\1ib", value)
    return parse_nbytes(value)


def parse_local_buffer_nbytes(value: object) -> int:
    """Return a number of bytes that is enough for the store's own transfer buffers."""
    nbytes = parse_segment_nbytes(value)
    if nbytes < _MIN_LOCAL_BUFFER_NBYTES:
        raise ValueError("expected at least 1MiB")
    return nbytes


def parse_address(value: object) -> str:
    """Return ``host:port``."""
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError("expected host:port, such as 10.0.0.1:50051")
    return f"{host}:{port}"


def parse_url(value: object) -> str:
    """Return ``mooncake://host:port``."""
    scheme, _, address = value.partition("://") if isinstance(value, str) else ("", "", "")
    if scheme != "mooncake":
        raise ValueError("expected mooncake://host:port of the master")
    return f"mooncake://{parse_address(address.rstrip('/'))}"


def parse_protocol(value: object) -> str:
    """Return a transport's name in lower case, as the SDK wants it."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a transport, such as tcp or rdma")
    return value.strip().lower()


def parse_deadline_s(value: object) -> float:
    """Return seconds; more than 30 are refused, because the SDK gives up on transfers of its own after 60."""
    number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    if not 0 < number <= _MAX_DEADLINE_S:
        reason = f"expected seconds above 0 and up to {_MAX_DEADLINE_S:.0f}"
        raise ValueError(reason)
    return number


def parse_key_prefix(value: object) -> str:
    """Return text that may stand before every key as it is."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_./:=@+-]*", value):
        raise ValueError("expected letters, digits and any of _./:=@+-")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeOptions:
    """Options of `MooncakeStore` and of the store node, which share the connection's part."""

    url: str | None = option(
        None, doc="mooncake://host:port of the master; or give master_server_address", parse=parse_url
    )
    master_server_address: str | None = option(
        None,
        doc="host:port of the master",
        parse=parse_address,
        aliases=("master_server_addr",),
        env=("MOONCAKE_MASTER",),
    )
    metadata_server: str = option(
        "P2PHANDSHAKE",
        doc="where clients find each other: P2PHANDSHAKE, or http://host:port/metadata of the master; "
        "all workers and nodes need the same",
        env=("MOONCAKE_TE_META_DATA_SERVER",),
    )
    protocol: str = option(
        "tcp", doc="transport: tcp, rdma, efa, ...", parse=parse_protocol, env=("MOONCAKE_PROTOCOL",)
    )
    device_name: str = option(
        "", doc="RDMA devices, comma-separated; empty = all", aliases=("rdma_devices",), env=("MOONCAKE_DEVICE",)
    )
    local_hostname: str = option(
        "localhost",
        doc="name or address at which the others reach this process",
        env=("MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"),
    )
    global_segment_nbytes: int = option(
        0,
        doc="memory that this process gives to the store; its objects end with the process, so that workers "
        "give none and store nodes give it all",
        parse=parse_segment_nbytes,
        aliases=("global_segment_size",),
        env=("MOONCAKE_GLOBAL_SEGMENT_SIZE",),
    )
    local_buffer_nbytes: int = option(
        64 << 20,
        doc="registered memory through which data goes that cannot go directly, divided among the io_threads",
        parse=parse_local_buffer_nbytes,
        aliases=("local_buffer_size",),
        env=("MOONCAKE_LOCAL_BUFFER_SIZE",),
    )
    master_metrics_port: int = option(
        9003,
        doc="port of the master's HTTP server, for listing",
        parse=whole_number(1, 65_535),
        env=("MOONCAKE_MASTER_METRICS_PORT",),
    )
    tenant_id: str = option("default", doc="Mooncake tenant", env=("MOONCAKE_TENANT_ID",))
    replica_num: int = option(1, doc="copies of every object, each on another node", parse=whole_number(1, 16))
    group_objects: bool = option(
        True,  # noqa: FBT003 - a default
        doc="let the nodes evict all objects of a page together, if the SDK knows groups",
        aliases=("enable_group_semantics",),
    )
    key_prefix: str = option(
        "hicache/", doc="text before every key", parse=parse_key_prefix, aliases=("extra_backend_tag",)
    )
    io_threads: int = option(
        max(2, min(4, os.cpu_count() or 1)),
        doc="most SDK calls at once; each uses threads of the SDK's own",
        parse=whole_number(1, 64),
    )
    direct_reads: bool = option(
        True,  # noqa: FBT003 - a default
        doc="let registered memory be filled without a copy by nodes that answered lately; "
        "such a read ends when the SDK lets go of the memory, which can be after the deadline",
    )
    deadline_s: float = option(
        5.0, doc="seconds after which an operation fails, whatever the server does", parse=parse_deadline_s
    )
    log_level: Literal["TRACE", "INFO", "WARNING", "ERROR"] = option(
        "ERROR",
        doc="least severe messages that the SDK prints to stderr; set when it is loaded, so that the first store "
        "opened in a process decides for all",
        env=("MC_LOG_LEVEL",),
    )

    def __post_init__(self) -> None:
        check_fields(self, "mooncake")
        given = {self.url and self.url.partition("://")[2], self.master_server_address} - {None}
        if len(given) != 1:
            raise ConfigError(
                "mooncake options url, master_server_address: expected one address of the master, host:port"
            )

    @property
    def master(self) -> str:
        """``host:port`` of the master, whichever option gave it."""
        return self.master_server_address or (self.url or "").partition("://")[2]
