"""What a backend gives to the laws, and the few words in which the laws are written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from threading import Barrier
from typing import ClassVar, TypeVar

import pytest

from hicache_storage.daemon_pool import DaemonPool
from hicache_storage.errors import Unsupported
from hicache_storage.store import ObjectStore
from hicache_storage.testing.bodies import poisoned

T = TypeVar("T")

SMALL_STORE_NBYTES = 1 << 20
"""The capacity that `StoreHooks.small_store` is asked for."""

_START_WITHIN_S = 60.0
_TASKS_WITHIN_S = 120.0


class StoreHooks:
    """What a subclass of `StoreContract` fills in; pytest makes a new instance for every law.

    Always: the fixture `store`, `plant` and `observe`. For stores that others can open too: `second`
    and `opening_code`. For durable stores: `reopen`. For stores with a capacity: the fixture `small_store`.
    Whatever a store does not have is said in the class, so that it can be read there.
    """

    shared_between_processes: ClassVar[bool] = True
    """Whether two instances, also of two processes, work on the same objects."""

    bounded: ClassVar[bool] = True
    """Whether the store can be given a capacity; then `small_store` is required."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Give an empty store; close it and remove its objects afterwards."""
        raise NotImplementedError("define the fixture `store`")

    @pytest.fixture
    def small_store(self) -> ObjectStore:
        """Give an empty store with a capacity of `SMALL_STORE_NBYTES`, for which `observe` works too."""
        raise NotImplementedError("define the fixture `small_store`, or state `bounded = False`")

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        """Put *body* in place, whatever is there, without using the store's own write."""
        raise NotImplementedError("define `plant`")

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        """Return the object's bytes without using the store's own read; ``None`` if there is none."""
        raise NotImplementedError("define `observe`")

    def second(self, store: ObjectStore) -> ObjectStore:
        """Return another instance on the objects of *store*. The law closes it."""
        raise NotImplementedError("define `second`, or state `shared_between_processes = False`")

    def opening_code(self, store: ObjectStore) -> str:
        """Return Python statements that bind ``store`` in a new process to the objects of *store*."""
        raise NotImplementedError("define `opening_code`, or state `shared_between_processes = False`")

    def reopen(self, store: ObjectStore) -> ObjectStore:
        """Return a new instance on the objects of *store*, which was closed. The law closes it.

        If a server holds the objects, it is restarted in between.
        """
        raise NotImplementedError("define `reopen`, or let `Capabilities.durable` be False")


def fetched(store: ObjectStore, key: str, offset: int, length: int) -> bytes | None:
    """Return what the store reads into one target; ``None`` for a miss."""
    target = poisoned(length)
    return bytes(target) if store.read_into(key, offset, [target]) else None


def assert_lists(store: ObjectStore, prefix: str, keys: Iterable[str]) -> None:
    """Assert that listing yields exactly *keys*, each once; or says that the store cannot list."""
    if not store.capabilities.listing:
        with pytest.raises(Unsupported):
            list(store.list_keys(prefix))
        return
    assert sorted(info.key for info in store.list_keys(prefix)) == sorted(keys)


def assert_released(buffers: Sequence[bytearray]) -> None:
    """Assert that nobody holds a view of *buffers*: only then can a bytearray grow."""
    for buffer in buffers:
        buffer.append(0)


def at_once(*tasks: Callable[[], T]) -> list[T]:
    """Run every task on a thread of its own, all starting together; return their results in order.

    Raises:
        Exception: what the first failing task raised, once all have ended.
        TimeoutError: none failed, and some did not end. They are left to themselves, and keep no process alive.
    """
    start = Barrier(len(tasks))
    pool = DaemonPool(len(tasks), "at-once")

    def run(task: Callable[[], T]) -> T:
        start.wait(_START_WITHIN_S)
        return task()

    with _eager_switching():
        futures = [pool.submit(partial(run, task)) for task in tasks]
        pool.close(wait=False)
        late = wait(futures, _TASKS_WITHIN_S).not_done
    results = [future.result() for future in futures if future not in late]
    if late:
        raise TimeoutError(f"{len(late)} of {len(tasks)} tasks have not ended after {_TASKS_WITHIN_S:g} s")
    return results


@contextmanager
def _eager_switching() -> Iterator[None]:
    """Let threads take turns often: by default a thread can do hundreds of system calls before another gets its turn."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
