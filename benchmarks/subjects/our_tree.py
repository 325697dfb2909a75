"""This project's radix tree."""

from __future__ import annotations

from array import array
from importlib.metadata import version

from benchmarks.subjects.trees import Tree
from hicache_storage.engine_integration.radix import Key, RadixTree, Tier

Request = tuple["array[int]", object]


class OurTree(Tree):
    """`RadixTree` on the device tier alone, lru."""

    def __init__(self) -> None:
        self.version = version("hicache-storage")
        self.calls = {
            "insert": "RadixTree.match_and_split, insert",
            "match": "RadixTree.match_and_split",
            "evict": "RadixTree.evict",
        }

    def wipe(self) -> None:
        self._tree = RadixTree(self._workload.page_tokens)
        self._now = 0

    def _request(self, number: int, tokens: list[int]) -> Request:
        pages = self._workload.prompt_tokens // self._workload.page_tokens
        return array("I", tokens), array("q", range(number * pages, (number + 1) * pages))

    def _insert(self, request: Request) -> None:
        tokens, pages = request
        assert isinstance(pages, array)
        self._now += 1
        key = Key.of(tokens, self._workload.page_tokens)
        known = self._tree.match_and_split(key, self._now).num_device
        self._tree.insert(key, pages[known:], self._now, first_page=known)

    def _match(self, request: Request) -> int:
        self._now += 1
        key = Key.of(request[0], self._workload.page_tokens)
        return self._tree.match_and_split(key, self._now).num_device * self._workload.page_tokens

    def _evict_all(self) -> None:
        while self._tree.evict(Tier.DEVICE, self._workload.batch).device_pages:
            pass
