"""Objects in the states that only Mooncake has: being written, leased, and under names it can print."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mooncake.store import MooncakeDistributedStore

from hicache_storage.backends.mooncake import MooncakeOptions, MooncakeStore
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.services.mooncake import MooncakeService
from hicache_storage.types import MISS, WriteResult
from tests.backends.mooncake.back_door import PATIENT_S

pytest_plugins = ["tests.backends.mooncake.services"]

_PREFIX = "objects/"


@pytest.fixture(scope="module")
def sdk(mooncake_cluster: MooncakeService) -> MooncakeDistributedStore:
    client = MooncakeDistributedStore()
    options = mooncake_cluster.options
    code = client.setup(
        "127.0.0.1", options["metadata_server"], 0, 16 << 20, "tcp", "", options["master_server_address"]
    )
    assert code == 0
    return client


@pytest.fixture
def store(mooncake_cluster: MooncakeService) -> Iterator[MooncakeStore]:
    options: dict[str, object] = dict(mooncake_cluster.options) | {"key_prefix": _PREFIX, "deadline_s": PATIENT_S}
    with MooncakeStore(MooncakeOptions(**options)) as store:  # type: ignore[arg-type]
        yield store


def test_an_object_being_written_is_a_miss(store: MooncakeStore, sdk: MooncakeDistributedStore) -> None:
    assert sdk.batch_put_session_start([_PREFIX + "half"], [100]) == [0]

    assert store.read_into("half", 0, [bytearray(1)]) is False
    assert store.stat("half") is None
    assert store.exists_many(["half"]) == [MISS]
    assert store.delete("half") is False
    assert "half" not in {info.key for info in store.list_keys()}


def test_a_name_whose_writer_has_died_can_be_written_again(store: MooncakeStore, sdk: MooncakeDistributedStore) -> None:
    assert sdk.batch_put_session_start([_PREFIX + "orphan"], [100]) == [0]

    assert store.write("orphan", [b"0123"]) is WriteResult.STORED


def test_a_leased_object_can_be_removed(store: MooncakeStore, sdk: MooncakeDistributedStore) -> None:
    store.write("leased", [b"0123"])
    assert sdk.is_exist(_PREFIX + "leased") == 1

    assert store.delete("leased") is True

    assert sdk.is_exist(_PREFIX + "leased") == 0


def test_a_body_in_mooncake_is_the_objects_bytes_and_one_more(
    store: MooncakeStore, sdk: MooncakeDistributedStore
) -> None:
    store.write("plain", [b"01", b"23"])

    assert sdk.get(_PREFIX + "plain") == b"0123\0"


def test_registered_memory_of_any_alignment_is_read_and_written(store: MooncakeStore) -> None:
    body = body_of("aligned", 2_000_001)
    arena = bytearray(3) + bytearray(body) + bytearray(2_000_003)
    store.register_memory(arena)
    source, target = memoryview(arena)[3:2_000_004], memoryview(arena)[2_000_005:4_000_006]

    assert store.write("aligned", [source[:700_001], b"", source[700_001:700_003], source[700_003:]])
    assert store.read_into("aligned", 0, [poisoned(1)])
    assert store.read_into("aligned", 0, [target[:1_000_001], target[1_000_001:]])

    assert target == body
