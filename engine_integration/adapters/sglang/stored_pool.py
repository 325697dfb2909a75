"""One host pool and its objects: the parts that its pages are stored in, and the four things that are done with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hicache_storage.engine_integration.adapters.sglang.host_pool import Buffer, TensorForm
from hicache_storage.engine_integration.adapters.sglang.pages import HostPages, flat_bytes
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.errors import LayoutError
from hicache_storage.kernels.relayout import from_page_unified, to_page_unified
from hicache_storage.types import Outcome


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of every page, with a namespace of its own.

    Attributes:
        form: how the part is read from the pool's tensors; None where a page is nothing but bytes.
        writes: False where another rank writes the same bytes, or nobody does.
    """

    client: PageStore
    pages: HostPages
    form: TensorForm | None
    writes: bool


class StoredPool:
    """A host pool of the engine. Thread-safe.

    Args:
        parts: all of them make a page.
        buffer: the pool's tensors, if parts are read from them.
    """

    def __init__(self, name: str, page_tokens: int, parts: Sequence[StoredPart], buffer: Buffer | None = None) -> None:
        self.name = name
        self.parts = parts
        self.page_nbytes = sum(part.client.layout.page_nbytes for part in parts)
        self._page_tokens = page_tokens
        self._buffer = buffer

    def lookup(self, hashes: Sequence[str]) -> int:
        """Return how many leading pages are there with all of their parts."""
        count = len(hashes)
        for part in self.parts:
            count = part.client.lookup_prefix(hashes[:count])
        return count

    def present(self, hashes: Sequence[str]) -> list[bool]:
        """Say for each page whether all of its parts are there."""
        answers = [part.client.present_pages(hashes) for part in self.parts]
        return [all(page) for page in zip(*answers, strict=True)]

    def read(self, hashes: Sequence[str], host_indices: Tensor | None, prefix: Sequence[str]) -> list[bool]:
        """Fill pages of the pool; true for the leading pages that are whole and verified.

        Raises:
            LayoutError: the indices are not those of as many whole pages.
        """
        slots = page_slots(host_indices, self._page_tokens, len(hashes))
        count = len(hashes)
        for part in self.parts:
            count = _leading(part.pages.read(part.client, hashes[:count], slots[:count], prefix))
        return [page < count for page in range(len(hashes))]

    def write(self, hashes: Sequence[str], host_indices: Tensor | None, prefix: Sequence[str]) -> list[bool]:
        """Store pages of the pool; true for each that is there now, or is another rank's to store.

        Raises:
            LayoutError: as `read`.
        """
        slots = page_slots(host_indices, self._page_tokens, len(hashes))
        stored = [True] * len(hashes)
        for part in self.parts:
            if part.writes:
                outcomes = part.pages.write(part.client, hashes, slots, prefix)
                stored = [ok and bool(outcome) for ok, outcome in zip(stored, outcomes, strict=True)]
        return stored

    def read_flat(self, hashes: Sequence[str], targets: Sequence[Tensor]) -> list[bool]:
        """Fill *targets*, one for each page and shaped as SGLang's flat pages are; true as for `read`."""
        count = len(hashes)
        for part in self.parts:
            pages = _page_memory(count, part)
            found = part.client.read_pages(hashes[:count], [flat_bytes(page) for page in pages])
            count = _leading(found)
            for target, page in zip(targets[:count], pages, strict=False):
                self._flatten(part, page, target)
        return [page < count for page in range(len(hashes))]

    def write_flat(self, hashes: Sequence[str], values: Sequence[Tensor]) -> list[bool]:
        """Store *values*, one flat page for each hash; true as for `write`."""
        stored = [True] * len(hashes)
        for part in self.parts:
            if not part.writes:
                continue
            pages = _page_memory(len(hashes), part)
            for page, value in zip(pages, values, strict=True):
                self._arrange(part, value, page)
            outcomes = part.client.write_pages(hashes, [flat_bytes(page) for page in pages])
            stored = [ok and bool(outcome) for ok, outcome in zip(stored, outcomes, strict=True)]
        return stored

    def _arrange(self, part: StoredPart, value: Tensor, page: Tensor) -> None:
        if part.form is None or self._buffer is None:
            page.copy_(value.contiguous().view(torch.uint8).view(-1))
            return
        host = part.form.one_page(value, self._buffer)
        to_page_unified(host, _FIRST, page.unsqueeze(0), group_heads=part.client.layout.group_heads)

    def _flatten(self, part: StoredPart, page: Tensor, target: Tensor) -> None:
        if part.form is None or self._buffer is None:
            target.view(torch.uint8).view(-1).copy_(page)
            return
        host = part.form.one_page(target, self._buffer)
        from_page_unified(page.unsqueeze(0), host, _FIRST, group_heads=part.client.layout.group_heads)


_FIRST = torch.zeros(1, dtype=torch.int64)


def page_slots(host_indices: Tensor | None, page_tokens: int, pages: int) -> list[int]:
    """Return the first slot of each page.

    Raises:
        LayoutError: there are more or fewer slots than *pages* have, or they are not those of whole pages in order.
    """
    slots = 0 if host_indices is None else host_indices.numel()
    if host_indices is None or slots != pages * page_tokens:
        raise LayoutError(f"{slots} host slots for {pages} pages of {page_tokens} tokens")
    rows = host_indices.view(pages, page_tokens)
    starts = rows[:, 0]
    are_starts = not bool(((starts < 0) | (starts % page_tokens != 0)).any())
    if not (are_starts and bool((rows - starts[:, None] == torch.arange(page_tokens)).all())):
        raise LayoutError("host slots that are not those of whole pages, in order")
    return starts.tolist()


def _page_memory(count: int, part: StoredPart) -> Tensor:
    return torch.empty(count, part.client.layout.page_nbytes, dtype=torch.uint8)


def _leading(outcomes: Sequence[Outcome]) -> int:
    return next((page for page, outcome in enumerate(outcomes) if not outcome), len(outcomes))
