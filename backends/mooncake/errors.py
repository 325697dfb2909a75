"""What Mooncake's error codes mean here: the one place that decides it. The SDK raises nothing, it returns codes."""

from __future__ import annotations

from hicache_storage.errors import (
    AccessDenied,
    CorruptObject,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Unsupported,
)

BACKEND = "mooncake"

OK = 0
INVALID_PARAMS = -600
ALREADY_EXISTS = -705
TRANSFER_FAIL = -800

_MEANING: dict[int, tuple[str, type[StoreError]]] = {
    -1: ("INTERNAL_ERROR", StoreUnavailable),
    -10: ("BUFFER_OVERFLOW", StoreUnavailable),
    -100: ("SHARD_INDEX_OUT_OF_RANGE", StoreUnavailable),
    -101: ("SEGMENT_NOT_FOUND", StoreUnavailable),
    -102: ("SEGMENT_ALREADY_EXISTS", StoreUnavailable),
    -103: ("CLIENT_NOT_FOUND", StoreUnavailable),
    -200: ("NO_AVAILABLE_HANDLE", StoreFull),
    -300: ("INVALID_VERSION", StoreUnavailable),
    -400: ("INVALID_KEY", Unsupported),
    -500: ("WRITE_FAIL", StoreUnavailable),
    INVALID_PARAMS: ("INVALID_PARAMS", StoreUnavailable),
    -601: ("ILLEGAL_CLIENT", StoreUnavailable),
    -700: ("INVALID_WRITE", StoreUnavailable),
    -701: ("INVALID_READ", StoreUnavailable),
    -702: ("INVALID_REPLICA", StoreUnavailable),
    -703: ("REPLICA_IS_NOT_READY", StoreUnavailable),
    -704: ("OBJECT_NOT_FOUND", StoreUnavailable),
    ALREADY_EXISTS: ("OBJECT_ALREADY_EXISTS", StoreUnavailable),
    -706: ("OBJECT_HAS_LEASE", StoreUnavailable),
    -707: ("LEASE_EXPIRED", StoreUnavailable),
    -708: ("OBJECT_HAS_REPLICATION_TASK", StoreUnavailable),
    -709: ("OBJECT_NO_REPLICATION_TASK", StoreUnavailable),
    -710: ("REPLICA_NOT_FOUND", StoreUnavailable),
    -711: ("REPLICA_ALREADY_EXISTS", StoreUnavailable),
    -712: ("REPLICA_IS_GONE", StoreUnavailable),
    -713: ("REPLICA_NOT_IN_LOCAL_MEMORY", StoreUnavailable),
    -714: ("OBJECT_REPLICA_BUSY", StoreUnavailable),
    TRANSFER_FAIL: ("TRANSFER_FAIL", StoreUnavailable),
    -801: ("CHECKSUM_MISMATCH", CorruptObject),
    -900: ("RPC_FAIL", StoreUnavailable),
    -901: ("RPC_TIMEOUT", StoreUnavailable),
    -1000: ("ETCD_OPERATION_ERROR", StoreUnavailable),
    -1001: ("ETCD_KEY_NOT_EXIST", StoreUnavailable),
    -1002: ("ETCD_TRANSACTION_FAIL", StoreUnavailable),
    -1003: ("ETCD_CTX_CANCELLED", StoreUnavailable),
    -1004: ("OPLOG_ENTRY_NOT_FOUND", StoreUnavailable),
    -1005: ("K8S_LEASE_OPERATION_ERROR", StoreUnavailable),
    -1006: ("K8S_LEASE_NOT_FOUND", StoreUnavailable),
    -1007: ("INCOMPLETE_OPLOG_CATCH_UP", StoreUnavailable),
    -1010: ("UNAVAILABLE_IN_CURRENT_STATUS", StoreUnavailable),
    -1011: ("UNAVAILABLE_IN_CURRENT_MODE", Unsupported),
    -1100: ("FILE_NOT_FOUND", StoreUnavailable),
    -1101: ("FILE_OPEN_FAIL", StoreUnavailable),
    -1102: ("FILE_READ_FAIL", StoreUnavailable),
    -1103: ("FILE_WRITE_FAIL", StoreUnavailable),
    -1104: ("FILE_INVALID_BUFFER", StoreUnavailable),
    -1105: ("FILE_LOCK_FAIL", StoreUnavailable),
    -1106: ("FILE_INVALID_HANDLE", StoreUnavailable),
    -1200: ("BUCKET_NOT_FOUND", StoreUnavailable),
    -1201: ("BUCKET_ALREADY_EXISTS", StoreUnavailable),
    -1202: ("KEYS_EXCEED_BUCKET_LIMIT", StoreFull),
    -1203: ("KEYS_ULTRA_LIMIT", StoreFull),
    -1300: ("UNABLE_OFFLOAD", StoreUnavailable),
    -1301: ("UNABLE_OFFLOADING", StoreUnavailable),
    -1400: ("TASK_NOT_FOUND", StoreUnavailable),
    -1401: ("TASK_PENDING_LIMIT_EXCEEDED", StoreUnavailable),
    -1402: ("JOB_NOT_FOUND", StoreUnavailable),
    -1500: ("SERIALIZE_UNSUPPORTED", Unsupported),
    -1501: ("SERIALIZE_FAIL", StoreUnavailable),
    -1502: ("DESERIALIZE_FAIL", CorruptObject),
    -1503: ("PERSISTENT_FAIL", StoreUnavailable),
    -1600: ("DFS_NETWORK_TIMEOUT", StoreUnavailable),
    -1601: ("DFS_SERVICE_UNAVAILABLE", StoreUnavailable),
    -1602: ("DFS_QUOTA_EXCEEDED", StoreFull),
    -1603: ("DFS_PERMISSION_DENIED", AccessDenied),
    -1604: ("DFS_STALE_HANDLE", StoreUnavailable),
    -1605: ("DFS_PARTIAL_WRITE", StoreUnavailable),
    -1700: ("TENANT_QUOTA_EXCEEDED", StoreFull),
    -1701: ("TENANT_NOT_REGISTERED", AccessDenied),
    -1702: ("TENANT_NOT_EMPTY", StoreUnavailable),
}

NOT_THERE = frozenset({-703, -704, -710, -712})
"""The object does not exist, or not yet: whatever is still being written is a miss."""

PASSING = frozenset({-706, -707, -708, -714, INVALID_PARAMS})
"""The object is about to change or has just changed; asking again gives a definite answer.

The parameters are this package's own and right, so `INVALID_PARAMS` says that the object is not what it was
when it was looked up, or that another thread of this client is writing it.
"""


def store_error(code: int, *, op: str, key: str = "") -> StoreError:
    """Return what *code* means for one operation; a code that no version known here has means unavailable."""
    name, meaning = _MEANING.get(code, ("an unknown error", StoreUnavailable))
    return meaning(f"Mooncake answers {name} ({code})", backend=BACKEND, op=op, key=key)


def unavailable(reason: str, *, op: str, key: str = "") -> StoreUnavailable:
    """Return an error for what went wrong before the SDK could say anything."""
    return StoreUnavailable(reason, backend=BACKEND, op=op, key=key)
