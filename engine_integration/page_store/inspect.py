"""Looking at stored objects without being a rank: which namespaces there are, and whether bytes are intact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, unique

from hicache_storage.engine_integration.page_store.descriptor import Descriptor, digest_of_descriptor, read_descriptor
from hicache_storage.errors import CorruptObject, LayoutError, RangeError, StoreError
from hicache_storage.layout import FOOTER_NBYTES, Footer, ObjectKey, RangeVerifier
from hicache_storage.store import ObjectStore
from hicache_storage.types import ObjectInfo

_MAX_OBJECT_NBYTES = 1 << 30


@unique
class Health(Enum):
    """What a full read of one object showed."""

    INTACT = "intact"
    CORRUPT = "corrupt"
    MISSING = "missing"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one object is what was written.

    Attributes:
        reason: what is wrong, or why it cannot be judged; empty for intact objects.
    """

    key: str
    health: Health
    nbytes: int
    reason: str = ""


@dataclass(slots=True)
class NamespaceUsage:
    """What a store holds of one namespace."""

    digest: str
    objects: int = 0
    nbytes: int = 0
    page_hashes: set[str] = field(default_factory=set)


def usage_by_namespace(infos: Iterable[ObjectInfo]) -> dict[str, NamespaceUsage]:
    """Add up a listing by namespace; objects that are neither pages nor descriptors count under ``""``."""
    usage: dict[str, NamespaceUsage] = {}
    for info in infos:
        digest = digest_of_descriptor(info.key)
        page_hash = None
        if digest is None:
            digest, page_hash = _page_of(info.key)
        entry = usage.setdefault(digest, NamespaceUsage(digest))
        entry.objects += 1
        entry.nbytes += info.nbytes
        if page_hash is not None:
            entry.page_hashes.add(page_hash)
    return usage


def describe(store: ObjectStore, digest: str) -> Descriptor | None:
    """Return what the store says of a namespace; None if it says nothing readable."""
    try:
        return read_descriptor(store, digest)
    except LayoutError:
        return None


def verify_objects(store: ObjectStore, infos: Iterable[ObjectInfo]) -> Iterator[Verdict]:
    """Read every object in whole and judge it.

    Raises:
        StoreError: the store failed for a reason that is not the object's.
    """
    for info in infos:
        yield verify_object(store, info)


def verify_object(store: ObjectStore, info: ObjectInfo) -> Verdict:
    """Read one object in whole and judge it against its own trailer and its own name.

    Cost: the object's size in memory, once.
    """
    if digest_of_descriptor(info.key) is not None:
        return _verify_descriptor(store, info)
    try:
        ObjectKey.parse(info.key)
    except LayoutError:
        return Verdict(info.key, Health.FOREIGN, info.nbytes, "not an object of this package")
    if not FOOTER_NBYTES <= info.nbytes <= _MAX_OBJECT_NBYTES:
        return Verdict(info.key, Health.CORRUPT, info.nbytes, f"an object of {info.nbytes} bytes has no trailer")
    body = memoryview(bytearray(info.nbytes))
    try:
        if not store.read_into(info.key, 0, [body], object_nbytes=info.nbytes):
            return Verdict(info.key, Health.MISSING, 0, "gone since it was listed")
        footer = Footer.parse(body[-FOOTER_NBYTES:], info.nbytes)
    except (CorruptObject, RangeError, LayoutError) as error:
        return Verdict(info.key, Health.CORRUPT, info.nbytes, str(error))
    payload, trailer = body[: footer.payload_nbytes], body[footer.payload_nbytes :]
    wrong = RangeVerifier(info.key, footer.block_nbytes, footer.payload_nbytes, 0, payload).mismatch(trailer)
    return Verdict(info.key, Health.INTACT if wrong is None else Health.CORRUPT, info.nbytes, wrong or "")


def _verify_descriptor(store: ObjectStore, info: ObjectInfo) -> Verdict:
    digest = digest_of_descriptor(info.key) or ""
    try:
        found = read_descriptor(store, digest)
    except (LayoutError, CorruptObject) as error:
        return Verdict(info.key, Health.CORRUPT, info.nbytes, str(error))
    if found is None:
        return Verdict(info.key, Health.MISSING, 0, "gone since it was listed")
    if found.digest != digest:
        return Verdict(info.key, Health.CORRUPT, info.nbytes, f"describes {found.digest}, not {digest}")
    return Verdict(info.key, Health.INTACT, info.nbytes)


def quarantine(store: ObjectStore, verdict: Verdict) -> bool:
    """Take a corrupt object out of use; say whether that worked."""
    try:
        return store.quarantine(verdict.key)
    except StoreError:
        return False


def _page_of(key: str) -> tuple[str, str | None]:
    try:
        parsed = ObjectKey.parse(key)
    except LayoutError:
        return "", None
    return parsed.namespace_digest, parsed.page_hash
