"""Text that is equal on two ranks where the values mean the same, and short enough to be kept.

No address of an object gets into it: what has no canonical form is its type's name. Sets and dictionaries are
sorted; long texts are cut and their digest says what was cut off.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from numbers import Integral
from pathlib import PurePath

import msgspec
from xxhash import xxh3_64_hexdigest

from hicache_storage.engine_integration.consensus.entry import MAX_VALUE_CHARS

_MAX_DEPTH = 8
_MAX_NODES = 20_000
_SHORT = 64
_FEW_NUMBERS = 32
_AS_REPR = frozenset({int, bool, float, type(None)})


def canonical(value: object) -> str:
    """Return the text of *value*: ASCII, at most `MAX_VALUE_CHARS`.

    Cost: proportional to the value; about 20 ns for an integer in a list.
    """
    if type(value) in _AS_REPR:
        return repr(value)
    if isinstance(value, str | bytes | array | Enum):  # bounded as they are
        return in_ascii(_text_of_leaf(value) or "")
    return clipped(in_ascii(_Walk().text(value, 0)), MAX_VALUE_CHARS)


def in_ascii(text: str) -> str:
    """Return *text* with everything else escaped."""
    return text if text.isascii() else text.encode("ascii", "backslashreplace").decode()


def clipped(text: str, max_chars: int) -> str:
    """Return *text*, or as much of it as fits together with the digest of all of it."""
    if len(text) <= max_chars:
        return text
    tail = f"... {len(text)} characters, digest {_digest(text.encode('ascii'))}"
    return text[: max_chars - len(tail)] + tail


class _Walk:
    """One walk through a value. Depth and number of parts are bounded, so that cycles end, alike on every rank."""

    def __init__(self) -> None:
        self._left = _MAX_NODES

    def text(self, value: object, depth: int) -> str:
        if type(value) in _AS_REPR:
            return repr(value)
        self._left -= 1
        if depth > _MAX_DEPTH or self._left < 0:
            return "<more>"
        # Most often it is a list; to ask what else it might be takes longer than to list some numbers.
        text = None if type(value) is list else _text_of_leaf(value)
        return self._text_of_parts(value, depth + 1) if text is None else text

    def _text_of_parts(self, value: object, depth: int) -> str:
        if isinstance(value, list | deque):
            return f"[{self._joined(value, depth)}]"
        if isinstance(value, tuple):
            return f"({self._joined(value, depth)})"
        if isinstance(value, AbstractSet):
            return f"{{{', '.join(sorted(self.text(one, depth) for one in value))}}}"
        if isinstance(value, Mapping):
            pairs = sorted((self.text(key, depth), self.text(one, depth)) for key, one in value.items())
            return f"{{{', '.join(f'{key}: {one}' for key, one in pairs)}}}"
        fields = _fields(value)
        if fields is None:
            return f"<{type(value).__name__}>"
        return f"{type(value).__name__}({', '.join(f'{name}={self.text(one, depth)}' for name, one in fields)})"

    def _joined(self, values: Iterable[object], depth: int) -> str:
        return ", ".join([repr(one) if type(one) is int else self.text(one, depth) for one in values])


def _text_of_leaf(value: object) -> str | None:
    """Return the text of a value without parts, None if it is none of those known here."""
    match value:
        case Enum():
            return f"{type(value).__name__}.{value.name}"
        case str():
            return _text_of_str(value)
        case bytes() | array() | bytearray() | memoryview():
            return _text_of_buffer(value)
        case Integral():  # numpy's and other subclasses
            return repr(int(value))
        case float():
            return float.__repr__(value)
        case _:
            return str(value) if isinstance(value, range | PurePath) else None


def _fields(value: object) -> list[tuple[str, object]] | None:
    """Return the fields of a value that declares them, without those that its equality or its repr leaves out."""
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.compare and field.repr]
    elif isinstance(value, msgspec.Struct):
        names = list(value.__struct_fields__)
    else:
        return None
    return [(name, _field(value, name)) for name in names]


def _field(value: object, name: str) -> object:
    try:
        found: object = getattr(value, name)
    except AttributeError:  # a slot that was never filled
        return None
    return found


def _text_of_str(value: str) -> str:
    if len(value) <= _SHORT:
        return ascii(value)
    return f"{value[:_SHORT]!a}... {len(value)} characters, digest {_digest(value.encode('utf-8', 'surrogatepass'))}"


def _text_of_buffer(value: bytes | bytearray | memoryview | array[int] | array[float]) -> str:
    """Return few numbers or bytes as they are. Many are not spelled out: a long prompt has thousands of pages."""
    if isinstance(value, array):
        few = len(value) <= _FEW_NUMBERS
        return f"[{', '.join(map(repr, value))}]" if few else f"<{len(value)} numbers {_digest(value.tobytes())}>"
    data = bytes(value)
    shown = data.hex() if len(data) * 2 <= _SHORT else _digest(data)
    return f"<{len(data)} bytes {shown}>" if data else "<0 bytes>"


def _digest(data: bytes) -> str:
    return xxh3_64_hexdigest(data)
