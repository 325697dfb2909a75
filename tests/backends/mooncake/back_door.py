"""Planting and observing objects with the bare SDK, and the options that lead a store to the same cluster."""

from __future__ import annotations

import itertools

from mooncake.store import (
    MooncakeDistributedStore,
    ReplicateConfig,
)

from hicache_storage.backends.mooncake import MooncakeOptions
from hicache_storage.backends.mooncake.names import Names
from hicache_storage.testing.services.mooncake import LEAST_MEMORY_NBYTES, MooncakeService

_TAIL = b"\0"
_BUFFER_NBYTES = 32 << 20
PATIENT_S = 30.0
"""The longest deadline there is: one that a busy machine does not reach."""


class BackDoor:
    """One cluster. Every set of options has a prefix of its own, so that no test sees another's objects."""

    def __init__(self, service: MooncakeService) -> None:
        self.service = service
        self._numbers = itertools.count()
        self._client = MooncakeDistributedStore()
        options = service.options
        code = self._client.setup(
            "127.0.0.1", options["metadata_server"], 0, _BUFFER_NBYTES, "tcp", "", options["master_server_address"]
        )
        assert code == 0

    def options(self, **special: object) -> MooncakeOptions:
        own = {"key_prefix": f"test-{next(self._numbers)}/", "deadline_s": PATIENT_S}
        given = own | dict(self.service.options) | special
        return MooncakeOptions(**given)  # type: ignore[arg-type]

    def plant(self, options: MooncakeOptions, key: str, body: bytes) -> None:
        name = Names(options.key_prefix).name(key.encode())
        self._client.remove(name, force=True)
        assert self._client.put(name, body + _TAIL) == 0

    def observe(self, options: MooncakeOptions, key: str) -> bytes | None:
        name = Names(options.key_prefix).name(key.encode())
        if self._client.is_exist(name) != 1:
            return None
        body: bytes = self._client.get(name)
        assert body.endswith(_TAIL)
        return body[: -len(_TAIL)]

    def leave_room(self, nbytes: int) -> None:
        """Remove everything and fill the node with something that stays, but for *nbytes*."""
        self._client.remove_all(force=True)
        pinned = ReplicateConfig()
        pinned.with_hard_pin = True
        assert self._client.put("ballast", bytes(LEAST_MEMORY_NBYTES - nbytes), pinned) == 0
