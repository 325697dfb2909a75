"""Which objects hold the KV of some tokens, and which of them a store has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hicache_storage.cli.demo.scene import Scene
from hicache_storage.cli.foreign import open_store_of
from hicache_storage.errors import ConfigError
from hicache_storage.layout import object_key, page_hashes, request_seed
from hicache_storage.types import Outcome


def object_keys(scene: Scene, sequences: Iterable[Sequence[int]]) -> list[str]:
    """Return the keys of every object of the full pages of *sequences*, each once."""
    digest, chunks = scene.namespace.digest, scene.grid.chunks(scene.shape)
    seed = request_seed(cache_salt=scene.scope)
    hashes = [page_hashes(tokens, scene.shape.page_tokens, prior=seed) for tokens in sequences]
    return list(
        dict.fromkeys(
            object_key(page_hash, digest, chunk.suffix) for chain in hashes for page_hash in chain for chunk in chunks
        )
    )


def count_there(scene: Scene, keys: Sequence[str]) -> int:
    """Return how many of *keys* the store has.

    Raises:
        ConfigError: only one process could see what is in it.
        StoreError: it does not answer.
    """
    with open_store_of(scene.store) as store:
        if not store.capabilities.shared:
            raise ConfigError(
                f"the demo's engines cannot share a {scene.store.backend} store: it ends with its process"
            )
        return _successes(store.exists_many(keys))


def delete(scene: Scene, keys: Sequence[str]) -> int:
    """Delete the objects of *keys*; return how many there were.

    Raises:
        StoreError: the store does not answer.
    """
    with open_store_of(scene.store) as store:
        return _successes(store.delete_many(keys))


def _successes(outcomes: Sequence[Outcome]) -> int:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return sum(map(bool, outcomes))
