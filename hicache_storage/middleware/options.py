"""Which layers a deployment wants, and their order."""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from pathlib import Path
from threading import TIMEOUT_MAX

from hicache_storage.config import option, parse_nbytes, rank_name
from hicache_storage.errors import ConfigError
from hicache_storage.middleware.breaker import BreakerLayer
from hicache_storage.middleware.deadline import DeadlineLayer, GuardLayer
from hicache_storage.middleware.encryption import EncryptionLayer
from hicache_storage.middleware.fault_plan import FaultOptions, parse_faults
from hicache_storage.middleware.faults import with_faults
from hicache_storage.middleware.limit import ReadBudgetLayer, WriteBudgetLayer
from hicache_storage.middleware.metrics import MetricsLayer
from hicache_storage.middleware.retry import RetryLayer
from hicache_storage.store import ObjectStore

_MAX_KEY_FILE_NBYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MiddlewareOptions:
    """The ``middleware`` object of a backend's extra config. Everything is off unless it is named."""

    metrics: bool = option(default=False, doc="count operations, results, bytes and latencies")
    write_budget_nbytes: int | None = option(
        None,
        doc="bytes of writes under way beyond which writes are dropped; also the largest object",
        parse=parse_nbytes,
    )
    read_budget_nbytes: int | None = option(
        None,
        doc="bytes of reads under way beyond which reads wait, 60 s at most, before their deadline begins",
        parse=parse_nbytes,
    )
    breaker_failures: int | None = option(None, doc="unreachable calls in a row after which calls fail at once")
    breaker_open_s: float = option(1.0, doc="seconds until an open breaker lets a probe through; doubles")
    breaker_max_open_s: float = option(
        30.0, doc="seconds up to which that doubles, and so how long a store that is back may stay unused"
    )
    deadline_s: float | None = option(None, doc="seconds that an operation may take in all, retries included")
    retry_attempts: int = option(1, doc="how often an operation is tried in all; 1 = no retries")
    retry_base_s: float = option(0.05, doc="mean pause before the first retry, in seconds; doubles, with full jitter")
    encryption_key_file: Path | None = option(
        None, doc="file with an AES key of 16, 24 or 32 bytes in hex; objects are encrypted with AES-GCM"
    )
    faults: FaultOptions | None = option(
        None,
        doc="faults to inject into a share of the requests, for trying what a deployment bears",
        parse=parse_faults,
    )

    def __post_init__(self) -> None:
        for name in ("write_budget_nbytes", "read_budget_nbytes", "breaker_failures", "retry_attempts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"middleware option {name} = {value}: expected at least 1")
        for name in ("breaker_open_s", "breaker_max_open_s", "deadline_s", "retry_base_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= TIMEOUT_MAX:
                raise ConfigError(f"middleware option {name} = {value}: expected seconds above 0")


def wrap(store: ObjectStore, options: MiddlewareOptions) -> ObjectStore:
    """Return *store* with the layers that *options* ask for around it; closing the result closes the store.

    Raises:
        ConfigError: the key file cannot be used.
    """
    if options.faults is not None:
        store = with_faults(store, options.faults, rank_name())
    if options.encryption_key_file is not None:
        store = EncryptionLayer(store, _read_key(options.encryption_key_file))
    if options.deadline_s is not None and not store.capabilities.keeps_deadline:
        store = GuardLayer(store, options.deadline_s)
    if options.retry_attempts > 1:
        store = RetryLayer(store, attempts=options.retry_attempts, base_s=options.retry_base_s)
    if options.deadline_s is not None:
        store = DeadlineLayer(store, options.deadline_s)
    if options.breaker_failures is not None:
        store = BreakerLayer(
            store,
            failures=options.breaker_failures,
            open_s=options.breaker_open_s,
            max_open_s=options.breaker_max_open_s,
        )
    if options.read_budget_nbytes is not None:
        store = ReadBudgetLayer(store, options.read_budget_nbytes)
    if options.write_budget_nbytes is not None:
        store = WriteBudgetLayer(store, options.write_budget_nbytes)
    return MetricsLayer(store) if options.metrics else store


def _read_key(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_KEY_FILE_NBYTES:
            raise ConfigError(f"middleware option encryption_key_file = {path}: no key is that long")
        return binascii.unhexlify(path.read_text("ascii").strip())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its content is no hex number"
        raise ConfigError(f"middleware option encryption_key_file = {path}: {reason}") from error
