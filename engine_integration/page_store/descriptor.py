"""The readable object that says what a namespace is: for operators, and against two models under one name.

``namespace_<digest>.json`` lies in the store beside the pages. It tells an operator which model, dtype
and grid a digest stands for. It also carries what the digest does not cover, the model's layer
count and row widths, so that a misconfigured deployment is turned away instead of taking
everybody's good objects for damaged ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec
import xxhash

from hicache_storage.errors import LayoutError, RangeError
from hicache_storage.layout import Grid, KVShape, Namespace, block_nbytes
from hicache_storage.store import ObjectStore

FORMAT = "hicache-namespace-v1"
_PREFIX = "namespace_"
_SUFFIX = ".json"
_MAX_NBYTES = 64 * 1024


class Geometry(msgspec.Struct, frozen=True):
    """What a namespace's digest does not cover of the model's shape."""

    num_layers: int
    head_dim: int
    v_head_dim: int
    block_nbytes: int

    @classmethod
    def of(cls, shape: KVShape, grid: Grid) -> Geometry:
        return cls(shape.num_layers, shape.head_dim, shape.v_head_dim, block_nbytes(grid.cell_nbytes(shape)))


class _Document(msgspec.Struct, frozen=True):
    format: str
    digest: str
    fields: dict[str, str | int | bool]
    geometry: Geometry
    checksum: str


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A namespace as the store describes it."""

    digest: str
    fields: dict[str, str | int | bool]
    geometry: Geometry

    @classmethod
    def of(cls, namespace: Namespace, shape: KVShape) -> Descriptor:
        grid = Grid(namespace.layer_partition, namespace.head_partition)
        return cls(namespace.digest, namespace.encoded_fields(), Geometry.of(shape, grid))

    @classmethod
    def parse(cls, body: bytes) -> Descriptor:
        """Return the descriptor in *body*.

        Raises:
            LayoutError: it is no descriptor of this format.
        """
        try:
            document = msgspec.json.decode(body, type=_Document)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LayoutError(f"no namespace descriptor: {error}") from error
        if document.format != FORMAT:
            raise LayoutError(f"namespace descriptor of format {document.format!r}, this package reads {FORMAT!r}")
        descriptor = cls(document.digest, document.fields, document.geometry)
        if descriptor._checksum() != document.checksum:
            raise LayoutError("the namespace descriptor does not match its own checksum")
        return descriptor

    @property
    def key(self) -> str:
        return descriptor_key(self.digest)

    def encode(self) -> bytes:
        """Return the object's bytes: the same for the same namespace, on every machine."""
        document = self._document() | {"checksum": self._checksum()}
        return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"

    def _document(self) -> dict[str, object]:
        geometry = msgspec.to_builtins(self.geometry)
        return {"format": FORMAT, "digest": self.digest, "fields": self.fields, "geometry": geometry}

    def _checksum(self) -> str:
        compact = json.dumps(self._document(), ensure_ascii=False, separators=(",", ":")).encode()
        return xxhash.xxh3_64_hexdigest(compact)

    def conflict(self, other: Descriptor) -> str | None:
        """Say how *other*, found in the store, contradicts this deployment; None if it does not."""
        mine, theirs = msgspec.to_builtins(self.geometry), msgspec.to_builtins(other.geometry)
        differing = [f"{name} {mine[name]} here, {theirs[name]} there" for name in mine if mine[name] != theirs[name]]
        if not differing:
            return None
        return (
            f"namespace {self.digest} is in use for another model of the name {self.fields['model_id']!r}: "
            f"{', '.join(differing)}; set weights_revision or another model_id"
        )


def descriptor_key(digest: str) -> str:
    """Return the key under which a namespace describes itself."""
    return f"{_PREFIX}{digest}{_SUFFIX}"


def digest_of_descriptor(key: str) -> str | None:
    """Return the digest that *key* describes, or None if it is no descriptor's key."""
    if key.startswith(_PREFIX) and key.endswith(_SUFFIX):
        return key[len(_PREFIX) : -len(_SUFFIX)]
    return None


def read_descriptor(store: ObjectStore, digest: str) -> Descriptor | None:
    """Return what the store says of a namespace, or None if it says nothing.

    Raises:
        LayoutError: the object is there and is no descriptor.
        StoreError: it could not be read.
    """
    key = descriptor_key(digest)
    info = store.stat(key)
    if info is None:
        return None
    if info.nbytes > _MAX_NBYTES:
        raise LayoutError(f"namespace descriptor of {info.nbytes} bytes, at most {_MAX_NBYTES} are read")
    body = bytearray(info.nbytes)
    try:
        found = store.read_into(key, 0, [body])
    except RangeError as error:
        raise LayoutError("the namespace descriptor shrank while it was read") from error
    return Descriptor.parse(bytes(body)) if found else None
