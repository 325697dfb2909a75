"""What of a prompt is cached, and the loads that bring it onto the device. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hicache_storage import telemetry
from hicache_storage.engine_integration.controller.copies import Loads
from hicache_storage.engine_integration.controller.device_room import DeviceRoom
from hicache_storage.engine_integration.controller.request import CachedTokens, RequestFetch
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.radix import Key, Match, RadixTree, Tier
from hicache_storage.errors import TierFull
from hicache_storage.telemetry import Counters


class Prefixes:
    """Finds cached prefixes whose bytes are there or will be, and loads what of them is on the host alone."""

    def __init__(
        self, tree: RadixTree, room: DeviceRoom, loads: Loads, options: TierOptions, counters: Counters
    ) -> None:
        self._tree = tree
        self._room = room
        self._loads = loads
        self._options = options
        self._counters = counters
        self._now = 0

    def tick(self) -> int:
        """Return the time of the next use of the tree, which has no clock: the number of uses so far."""
        self._now += 1
        return self._now

    def match(self, key: Key) -> Match:
        """Return what is cached of *key*, up to the first page whose load has failed."""
        match = self._tree.match_and_split(key, self.tick())
        failed = self._loads.first_failed_page(match.loads)
        if failed is None:
            return match
        return self._tree.match_and_split(key.first(failed), self.tick(), is_use=False)

    def arrived(self, key: Key) -> Key:
        """Return *key* up to the first page whose load has failed, once every load of it has ended.

        Its pages may take the place of a request's own, which is computed; so they must be there.
        """
        if self._tree.match(key).loads:
            self._loads.settle()
            failed = self._loads.first_failed_page(self._tree.match(key).loads)
            return key if failed is None else key.first(failed)
        return key

    def load(self, match: Match) -> int:
        """Begin to load the host part of *match*; return its pages, 0 if it is too short or the device has no room."""
        if not self._is_worth_loading(match):
            return 0
        with self._locked(match, Tier.DEVICE), self._locked(match, Tier.HOST):
            try:
                pages = self._room.allocate(match.num_host)
            except TierFull:
                self._counters.add(telemetry.LOADS_DECLINED)
                return 0
            self._loads.begin(self._tree.unloaded(match.last_node), pages)
        return match.num_host

    def cached(self, match: Match, loaded: int, fetch: RequestFetch | None) -> CachedTokens:
        """Return where the tokens come from of a request that uses *match*, *loaded* pages of its host part included."""
        page_tokens = self._tree.page_tokens
        fetched = 0
        if fetch is not None:
            arrived = range(fetch.first_page, fetch.first_page + fetch.arrived)
            fetched = len(range(max(arrived.start, match.num_device), min(arrived.stop, match.num_device + loaded)))
        return CachedTokens(
            device=match.num_device * page_tokens,
            host=(loaded - fetched) * page_tokens,
            store=fetched * page_tokens,
        )

    def _is_worth_loading(self, match: Match) -> bool:
        tokens = match.num_host * self._tree.page_tokens
        return match.num_host > 0 and tokens >= self._options.load_back_threshold_tokens

    @contextmanager
    def _locked(self, match: Match, tier: Tier) -> Iterator[None]:
        """Keep what *match* has of *tier* while room is made for the rest."""
        node = match.device_node if tier is Tier.DEVICE else match.last_node
        self._tree.lock(node, tier)
        try:
            yield
        finally:
            self._tree.unlock(node, tier)
