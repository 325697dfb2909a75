"""What an object is called: `{page_hash}_{namespace_digest}_L{start}-{stop}[_H{group}]`.

A key says what an object holds, never who wrote it. It depends on nothing but the fields below:
not on the process, the machine, the hash seed, the container or the integer type of the tokens.
Golden values: tests/layout/golden. Source: docs/layout-spec.md 1 and 2.
"""

from __future__ import annotations

import hashlib
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hicache_storage.errors import ConfigError, LayoutError
from hicache_storage.layout.grid import Chunk

_KEY = re.compile(
    r"(?P<page_hash>[0-9a-f]{64})_(?P<digest>ukv1-[0-9a-f]{16})"
    r"_L(?P<start>0|[1-9][0-9]{0,7})-(?P<stop>[1-9][0-9]{0,7})(?:_H(?P<group>0|[1-9][0-9]{0,7}))?"
)
_PAGE_HASH_DIGITS = 64
_HEX = "0123456789abcdef"
_SGLANG_SCOPE = b"sglang-cache-namespace-v1"
_OWN_SCOPE = b"hicache-storage-request-scope-v1"


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """A key taken apart; ``str()`` puts it together again."""

    page_hash: str
    namespace_digest: str
    chunk: Chunk

    def __str__(self) -> str:
        return f"{self.page_hash}_{self.namespace_digest}_{self.chunk.suffix}"

    @classmethod
    def parse(cls, key: str) -> ObjectKey:
        """Return the parts of *key*.

        Raises:
            LayoutError: *key* does not name a chunk of a page.
        """
        match = _KEY.fullmatch(key)
        if match is None or int(match["start"]) >= int(match["stop"]):
            raise LayoutError(
                f"{key[:200]!r} is no object key: expected <64 hex digits>_ukv1-<16 hex digits>_L<start>-<stop>[_H<group>]"
            )
        group = None if match["group"] is None else int(match["group"])
        chunk = Chunk(range(int(match["start"]), int(match["stop"])), group)
        return cls(match["page_hash"], match["digest"], chunk)


def page_hashes(tokens: Iterable[int], page_tokens: int, *, prior: str | None = None) -> list[str]:
    """Return the chained hash of every full page of *tokens*; a shorter last page has none.

    Page ``n`` is the SHA-256 of the 32 bytes of page ``n - 1``'s hash (of *prior* for the first
    page; absent if None) followed by each token id as four little-endian bytes. A page's hash
    therefore stands for the whole prefix up to its end.

    Args:
        tokens: token ids in ``[0, 2**32)``; a list, tuple, array, NumPy array or torch tensor of any integer type.
        prior: hash of the page before, or `request_seed`; None at the start of an unscoped request.

    Raises:
        LayoutError: a token id is no integer or out of range, *tokens* are raw bytes or text, or *prior* is
            no page hash.
    """
    return packed_page_hashes(pack_tokens(tokens), page_tokens, prior=prior)


def packed_page_hashes(ids: bytes, page_tokens: int, *, prior: str | None = None) -> list[str]:
    """Return what `page_hashes` returns for the tokens whose `pack_tokens` is *ids*.

    A chain is continued by hashing only what follows, with the last known page's hash as *prior*.

    Raises:
        LayoutError: *prior* is no page hash.
    """
    if page_tokens < 1:
        raise LayoutError(f"page_tokens = {page_tokens}: a page has at least one token")
    step = page_tokens * 4
    digest = _digest_of(prior) if prior is not None else b""
    hashes = []
    for start in range(0, len(ids) - step + 1, step):
        page = hashlib.sha256(digest)
        page.update(ids[start : start + step])
        digest = page.digest()
        hashes.append(digest.hex())
    return hashes


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Return token ids as four little-endian bytes each, one behind the other.

    Cost: a memory copy for an ``array("I")``; about 10 ns a token for anything else.

    Raises:
        LayoutError: a token id is no integer or not in ``[0, 2**32)``, or *tokens* are raw bytes or text.
    """
    if isinstance(tokens, bytes | bytearray | str) or (isinstance(tokens, memoryview) and tokens.itemsize == 1):
        raise LayoutError(f"token ids must be integers in [0, 2**32), not the units of a {type(tokens).__name__}")
    if isinstance(tokens, array) and tokens.typecode == "I" and tokens.itemsize == 4 and sys.byteorder == "little":
        return tokens.tobytes()
    values = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    try:
        ids = array("I", values)
    except (OverflowError, TypeError) as error:
        raise LayoutError(f"token ids must be integers in [0, 2**32): {error}") from error
    if ids.itemsize != 4:
        raise ConfigError(f"this platform's unsigned int has {ids.itemsize} bytes, token ids need 4")
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def request_seed(
    *, lora_id: str | None = None, cache_salt: str | None = None, extra_key: str | None = None
) -> str | None:
    """Return the *prior* of a request's first page, so that requests of different scopes share nothing.

    None, the unscoped request, for no fields at all. ``extra_key`` and ``cache_salt`` alone give
    SGLang's seed; a LoRA id has a field of its own, where SGLang appends it to ``extra_key``.
    Presence and length of every field are encoded: absent, empty and differently cut fields differ.

    Raises:
        LayoutError: a field cannot be encoded as UTF-8.
    """
    if lora_id is None and cache_salt is None and extra_key is None:
        return None
    if lora_id is None:
        return _scope_hash(_SGLANG_SCOPE, (extra_key, cache_salt))
    return _scope_hash(_OWN_SCOPE, (extra_key, cache_salt, lora_id))


def object_key(page_hash: str, namespace_digest: str, chunk_suffix: str) -> str:
    """Return the key of one chunk of one page; the hot path's `ObjectKey`, without validation."""
    return f"{page_hash}_{namespace_digest}_{chunk_suffix}"


def check_page_hashes(page_hashes: Sequence[str]) -> None:
    """Raise `LayoutError` unless each of *page_hashes* is 64 lower-case hex digits.

    Cost: under 0.1 us each, because it stands on the way of every lookup.
    """
    for page_hash in page_hashes:
        if len(page_hash) != _PAGE_HASH_DIGITS or page_hash.strip(_HEX):
            raise LayoutError(f"{page_hash[:80]!r} is no page hash: expected {_PAGE_HASH_DIGITS} lower-case hex digits")


def _scope_hash(domain: bytes, parts: tuple[str | None, ...]) -> str:
    digest = hashlib.sha256(domain)
    for part in parts:
        if part is None:
            digest.update(b"\x00")
            continue
        try:
            encoded = part.encode("utf-8")
        except UnicodeEncodeError as error:
            raise LayoutError(f"request scope {part!r} cannot be encoded as UTF-8") from error
        digest.update(b"\x01" + len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _digest_of(prior: str) -> bytes:
    check_page_hashes([prior])
    return bytes.fromhex(prior)
