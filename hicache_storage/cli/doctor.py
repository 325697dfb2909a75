"""`hicache doctor`: does this store work from here, with these options, end to end, and how fast."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from hicache_storage.cli import exit_codes
from hicache_storage.cli.foreign import open_store_of
from hicache_storage.cli.options import add_command, add_json_argument, add_store_arguments, store_target
from hicache_storage.cli.output import print_json, print_table
from hicache_storage.config import Setting
from hicache_storage.errors import CorruptObject, HiCacheError
from hicache_storage.interrupts import heard_once
from hicache_storage.layout import RangeVerifier, block_nbytes, build_trailer
from hicache_storage.store import ObjectStore
from hicache_storage.types import WriteResult

_PAYLOAD_NBYTES = 2 << 20
_BLOCK_NBYTES = block_nbytes(64 << 10)
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Check:
    """One step of the examination.

    Attributes:
        seconds: time of one operation; the median where it was repeated.
        nbytes: bytes that one operation moved; 0 where throughput means nothing.
    """

    name: str
    passed: bool
    detail: str
    seconds: float = 0.0
    nbytes: int = 0


_EXAMPLES = """hicache doctor --store file:///mnt/kv
hicache doctor --hicache-storage-backend s3 --hicache-storage-backend-extra-config @s3.toml --json"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "doctor",
        summary="check a deployment's store end to end",
        description="Show where every option comes from, then write, look up, read in ranges, verify, list and delete "
        "a probe object. Nothing else in the store is touched. Exit status 3 if the store cannot be used.",
        examples=_EXAMPLES,
    )
    add_store_arguments(parser)
    add_json_argument(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine the store; the exit status names the first check that failed."""
    target = store_target(args)
    checks: list[Check] = []
    status = exit_codes.DONE
    try:
        # A capacity below what is there would have the probe evict real objects.
        with heard_once(), open_store_of(target, evicting=False) as store:
            status = _examine(store, checks)
    except HiCacheError as error:
        checks.append(_failed("close" if checks else "open", error))
        status = status or exit_codes.of_error(error)
    if args.json:
        print_json(_document(target.backend, target.settings, checks, status))
    else:
        _print(target.backend, target.settings, checks)
    return status


def _examine(store: ObjectStore, checks: list[Check]) -> int:
    """Append one check after the other until one fails; return the exit status."""
    probe = Probe(store)
    try:
        for name, examine in probe.examinations():
            try:
                checks.append(examine())
            except HiCacheError as error:
                checks.append(_failed(name, error))
                return exit_codes.of_error(error)
            if not checks[-1].passed:
                return exit_codes.CORRUPT if name in ("read", "ranged read", "verify") else exit_codes.UNREACHABLE
        return exit_codes.DONE
    finally:
        probe.clean_up()


def _failed(name: str, error: HiCacheError) -> Check:
    return Check(name, passed=False, detail=f"{type(error).__name__}: {error}")


class Probe:
    """One object with a name of its own, and the checks that use it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._key = f"doctor_{os.getpid()}_{os.urandom(8).hex()}"
        self._payload = memoryview(os.urandom(_PAYLOAD_NBYTES))
        self._trailer = build_trailer(self._key, self._payload, _BLOCK_NBYTES)
        self._object = bytearray(_PAYLOAD_NBYTES + len(self._trailer))

    def examinations(self) -> list[tuple[str, Callable[[], Check]]]:
        """Return the checks in order; each uses what the ones before it left in the store."""
        return [
            ("write", self.write),
            ("exists", self.exists),
            ("read", self.read),
            ("ranged read", self.ranged_read),
            ("verify", self.verify),
            ("list", self.list_keys),
            ("delete", self.delete),
        ]

    def clean_up(self) -> None:
        """Leave nothing behind, whatever failed."""
        with suppress(HiCacheError):
            self._store.delete(self._key)

    def write(self) -> Check:
        # What a store that forbids deleting says of that belongs to the check of deleting.
        results: list[WriteResult] = []
        seconds = _median(self.clean_up, lambda: results.append(self._write()))
        if WriteResult.ALREADY_THERE in results:
            return Check(
                "write", passed=True, detail="2 MiB object; no speed, it cannot be deleted to be written again"
            )
        return Check("write", passed=True, detail="2 MiB object", seconds=seconds, nbytes=len(self._object))

    def exists(self) -> Check:
        seconds = _median(lambda: None, lambda: self._store.exists_many([self._key]))
        [outcome] = self._store.exists_many([self._key])
        if outcome.error is not None:
            raise outcome.error
        return Check("exists", bool(outcome), "found" if outcome else "the object just written is not found", seconds)

    def read(self) -> Check:
        seconds = _median(lambda: None, self._read_whole)
        same = bytes(self._object) == bytes(self._payload) + self._trailer
        return Check("read", same, "same bytes" if same else "other bytes came back", seconds, len(self._object))

    def ranged_read(self) -> Check:
        out = bytearray(_BLOCK_NBYTES)
        offset = 5 * _BLOCK_NBYTES
        seconds = _median(lambda: None, lambda: self._store.read_into(self._key, offset, [out]))
        same = out == self._payload[offset : offset + _BLOCK_NBYTES]
        return Check("ranged read", same, f"{_BLOCK_NBYTES >> 10} KiB at an offset", seconds, _BLOCK_NBYTES)

    def verify(self) -> Check:
        body = memoryview(self._object)
        verifier = RangeVerifier(self._key, _BLOCK_NBYTES, _PAYLOAD_NBYTES, 0, body[:_PAYLOAD_NBYTES])
        start = time.perf_counter()
        wrong = verifier.mismatch(body[_PAYLOAD_NBYTES:])
        seconds = time.perf_counter() - start
        return Check("verify", wrong is None, wrong or "checksums match", seconds, _PAYLOAD_NBYTES)

    def list_keys(self) -> Check:
        if not self._store.capabilities.listing:
            return Check("list", passed=True, detail="this store cannot list, so hicache ls does not work on it")
        found = any(info.key == self._key for info in self._store.list_keys(self._key))
        return Check("list", found, "found" if found else "the object just written is not listed")

    def delete(self) -> Check:
        gone = self._store.delete(self._key) and self._store.stat(self._key) is None
        return Check("delete", gone, "gone" if gone else "the object is still there")

    def _write(self) -> WriteResult:
        return self._store.write(self._key, [self._payload, self._trailer])

    def _read_whole(self) -> None:
        if not self._store.read_into(self._key, 0, [self._object], object_nbytes=len(self._object)):
            raise CorruptObject("the object just written is not there", op="read", key=self._key)


def _median(between: Callable[[], object], operation: Callable[[], object]) -> float:
    """Return the median time of several runs of *operation*, before each of which but the first *between* runs."""
    times = []
    for number in range(_ROUNDS):
        if number:
            between()
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return sorted(times)[_ROUNDS // 2]


def plain_value(value: object) -> object:
    """Return an option's value as JSON shows it: numbers, booleans and lists as such, secrets masked, the rest as text."""
    if isinstance(value, Mapping):
        return {str(name): plain_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_value(item) for item in value]
    if value is None or type(value) in (bool, int, str):
        return value
    # JSON has no infinity.
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


def _remarks(settings: tuple[Setting, ...]) -> list[str]:
    """Return what the checks cannot find, because they leave the capacity out."""
    capacity = next((setting.value for setting in settings if setting.name == "capacity_nbytes"), None)
    if not isinstance(capacity, int) or capacity >= _PAYLOAD_NBYTES:
        return []
    remark = f"capacity_nbytes = {capacity} has no room for the object of 2 MiB that was written here without it"
    return [f"{remark}; a number without a unit is bytes, others are written as 10GiB"]


def _document(backend: str, settings: tuple[Setting, ...], checks: list[Check], status: int) -> dict[str, object]:
    return {
        "backend": backend,
        "options": {s.name: {"value": plain_value(s.value), "source": s.source} for s in settings},
        "checks": [
            {
                "name": check.name,
                "passed": check.passed,
                "detail": check.detail,
                "seconds": check.seconds or None,
                "gb_s": check.nbytes / check.seconds / 1e9 if check.seconds and check.nbytes else None,
            }
            for check in checks
        ],
        "remarks": _remarks(settings),
        "healthy": status == exit_codes.DONE,
    }


def _print(backend: str, settings: tuple[Setting, ...], checks: list[Check]) -> None:
    print(f"backend {backend}")
    print_table(["option", "value", "from"], [[s.name, s.value, s.source] for s in settings])
    print()
    rows = []
    for check in checks:
        rate = f"{check.nbytes / check.seconds / 1e9:.2f}" if check.seconds and check.nbytes else ""
        spent = f"{check.seconds * 1e3:.3f}" if check.seconds else ""
        rows.append([check.name, "ok" if check.passed else "FAILED", spent, rate, check.detail])
    print_table(["check", "", "ms", "GB/s", ""], rows)
    for remark in _remarks(settings):
        print(f"\n{remark}")
