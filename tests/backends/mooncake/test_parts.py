"""The parts that need no server: names, options, error codes, pieces, buffers and the node's command line."""

from __future__ import annotations

import random
import re
import sys
import time
from importlib.abc import MetaPathFinder

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_storage.backends.mooncake import MooncakeOptions, MooncakeStore, buffers, errors, node
from hicache_storage.backends.mooncake.buffers import Regions, Slots, address_of
from hicache_storage.backends.mooncake.names import Names
from hicache_storage.backends.mooncake.pieces import Body, cut
from hicache_storage.config import from_mapping, resolve
from hicache_storage.errors import AccessDenied, ConfigError, CorruptObject, StoreError, StoreFull, StoreUnavailable
from hicache_storage.testing.contract import HOSTILE_KEYS
from hicache_storage.testing.services.process import ReservedPort
from hicache_storage.types import ReadableBuffer, nbytes_of
from tests.backends.s3.stub import stub_server

_OBJECT_KEY = "e7663e63566375b0da3f512104e610802788ce9ef43385aecb44beff787cc88f_ukv1-dc5fedb13ebe9b02_L0-2_H0"
_MASTER = {"master_server_address": "10.0.0.1:50051"}

# -- names -----------------------------------------------------------------------------------


@given(st.text(min_size=1))
def test_a_name_gives_its_key_back(key: str) -> None:
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return

    assert Names("p/").key(Names("p/").name(encoded)) == key


@pytest.mark.parametrize("key", HOSTILE_KEYS, ids=lambda key: ascii(key[:12]))
def test_a_name_has_nothing_that_a_line_or_a_list_could_trip_over(key: str) -> None:
    assert re.fullmatch(r"[!-~]+", Names("").name(key.encode()))
    assert "," not in Names("").name(key.encode())


def test_an_object_key_is_its_own_name() -> None:
    assert Names("hicache/").name(_OBJECT_KEY.encode()) == f"hicache/{_OBJECT_KEY}"


def test_all_objects_of_a_page_are_in_one_group() -> None:
    names = Names("hicache/")

    groups = {names.group(names.name(_OBJECT_KEY.replace("L0-2", part).encode())) for part in ("L0-2", "L2-4")}

    assert groups == {f"hicache/{_OBJECT_KEY[:64]}"}


@pytest.mark.parametrize("name", ["other/k", "p/", "p/%41", "p/%ff", "p/%e", "P/k"])
def test_what_no_key_is_named_is_not_listed(name: str) -> None:
    assert Names("p/").key(name) is None


# -- options ---------------------------------------------------------------------------------


def test_the_usual_names_and_variables_are_understood() -> None:
    environ = {
        "MOONCAKE_MASTER": "10.0.0.1:50051",
        "MOONCAKE_TE_META_DATA_SERVER": "http://10.0.0.1:8080/metadata",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": "4gb",
        "MOONCAKE_LOCAL_BUFFER_SIZE": "16777216",
        "MOONCAKE_PROTOCOL": "RDMA",
        "MOONCAKE_DEVICE": "mlx5_0,mlx5_1",
        "MOONCAKE_LOCAL_HOSTNAME": "10.0.0.2",
        "MOONCAKE_MASTER_METRICS_PORT": "9004",
        "MOONCAKE_TENANT_ID": "blue",
    }
    given = from_mapping({"extra_backend_tag": "tag/", "enable_group_semantics": False}, "test")

    options, _ = resolve(MooncakeOptions, "mooncake", [given], environ)

    assert options == MooncakeOptions(
        master_server_address="10.0.0.1:50051",
        metadata_server="http://10.0.0.1:8080/metadata",
        global_segment_nbytes=4 << 30,
        local_buffer_nbytes=16 << 20,
        protocol="rdma",
        device_name="mlx5_0,mlx5_1",
        local_hostname="10.0.0.2",
        master_metrics_port=9004,
        tenant_id="blue",
        key_prefix="tag/",
        group_objects=False,
    )


def test_a_url_names_the_master() -> None:
    assert MooncakeOptions(url="mooncake://10.0.0.1:50051/").master == "10.0.0.1:50051"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"master_server_address": "10.0.0.1"},
        {"url": "redis://10.0.0.1:1"},
        _MASTER | {"url": "mooncake://10.0.0.2:50051"},
        _MASTER | {"local_buffer_nbytes": "1KiB"},
        _MASTER | {"deadline_s": 60},
        _MASTER | {"deadline_s": 0},
        _MASTER | {"key_prefix": "a,b"},
        _MASTER | {"io_threads": 0},
    ],
    ids=str,
)
def test_a_wrong_option_is_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=list(wrong)[-1] if wrong else "master_server_address"):
        MooncakeOptions(**wrong)  # type: ignore[arg-type]


# -- error codes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "meaning"),
    [(-200, StoreFull), (-1700, StoreFull), (-801, CorruptObject), (-1603, AccessDenied), (-901, StoreUnavailable)],
)
def test_a_code_has_its_meaning(code: int, meaning: type[StoreError]) -> None:
    error = errors.store_error(code, op="read", key="k")

    assert type(error) is meaning
    assert (error.backend, error.op, error.key) == ("mooncake", "read", "k")
    assert str(code) in str(error)


def test_a_code_that_nobody_knows_is_unavailable_and_named() -> None:
    error = errors.store_error(-4711, op="read")

    assert type(error) is StoreUnavailable
    assert "-4711" in str(error)


# -- pieces and buffers ----------------------------------------------------------------------


@pytest.mark.parametrize("slot_nbytes", [4096, 65_536, 1 << 20])
def test_pieces_move_every_byte_exactly_once(rng: random.Random, slot_nbytes: int) -> None:
    sizes = [0, 1, 100, 4095, 4096, 70_000]
    bodies = [
        Body(request, rng.randrange(100), [bytearray(rng.choice(sizes)) for _ in range(rng.randrange(6))])
        for request in range(12)
    ]
    direct = {id(buffer) for body in bodies for buffer in body.buffers if rng.random() < 0.5}

    def address_if_direct(buffer: ReadableBuffer) -> int | None:
        return address_of(buffer) if id(buffer) in direct else None

    pieces = cut(bodies, slot_nbytes, 1 << 40, address_if_direct)

    moved = {body.request: [] for body in bodies}  # type: dict[int, list[tuple[int, int]]]
    for piece in pieces:
        assert piece.staged_nbytes <= slot_nbytes
        assert sum(span.nbytes for span in piece.spans) == sum(nbytes_of(part.buffer) for part in piece.parts)
        for span in piece.spans:
            moved[span.request].append((span.offset, span.nbytes))
    for body in bodies:
        at = body.offset
        for offset, nbytes in moved[body.request]:
            assert offset == at
            at += nbytes
        assert at == body.offset + sum(map(nbytes_of, body.buffers))


def test_only_whole_registered_ranges_are_covered() -> None:
    regions = Regions()
    regions.add(100, 50)
    regions.add(200, 50)

    assert [regions.cover(at, 10) for at in (99, 100, 140, 141, 150, 195, 200, 241)] == [
        False, True, True, False, False, False, True, False
    ]  # fmt: skip


def test_a_range_registered_twice_stays_until_the_second_removal() -> None:
    regions = Regions()

    assert [regions.add(100, 50), regions.add(100, 50)] == [True, False]
    assert [regions.remove(100, 50), regions.cover(100, 50)] == [False, True]
    assert [regions.remove(100, 50), regions.cover(100, 50), regions.remove(100, 50)] == [True, False, False]


def test_a_slot_in_doubt_rests_before_it_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(8192, 1)
    slot = slots.take(0)
    assert slot is not None
    slots.give_back(slot, in_doubt=True)

    assert slots.take(0) is None
    rested_at = time.monotonic() + buffers.QUARANTINE_S
    monkeypatch.setattr(time, "monotonic", lambda: rested_at)

    assert slots.take(0) is slot


# -- the node's command line -----------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [[], ["--master", "127.0.0.1:1"], ["--master", "x", "--memory", "16MiB"]], ids=str
)
def test_a_node_with_wrong_options_says_so(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOONCAKE_MASTER", "MOONCAKE_GLOBAL_SEGMENT_SIZE"):
        monkeypatch.delenv(name, raising=False)

    assert node.main(arguments) == 2
    assert re.search("master|memory", capsys.readouterr().err)


def test_a_node_without_a_master_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert node.main(["--master", "127.0.0.1:1", "--memory", "16MiB"]) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_node_without_the_sdk_says_what_to_install(
    capsys: pytest.CaptureFixture[str], without_libibverbs: None
) -> None:
    assert node.main(["--master", "127.0.0.1:1", "--memory", "16MiB"]) == 2
    assert "apt-get install -y libibverbs1" in capsys.readouterr().err


# -- the SDK and the master's HTTP server ----------------------------------------------------


class _LacksIbverbs(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "mooncake.store":
            raise ImportError("libibverbs.so.1: cannot open shared object file")


@pytest.fixture
def without_libibverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK is installed and has not been loaded, and a library that it needs is missing."""
    for variable in ("MC_LOG_LEVEL", "MC_HANDSHAKE_CONNECT_TIMEOUT"):
        monkeypatch.setenv(variable, "")
    monkeypatch.delitem(sys.modules, "mooncake.store", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_LacksIbverbs(), *sys.meta_path])


def test_a_store_without_the_sdk_says_what_to_install(without_libibverbs: None) -> None:
    options = MooncakeOptions(master_server_address="127.0.0.1:1", local_hostname="without-libibverbs")

    with pytest.raises(ConfigError, match=r"libibverbs.*apt-get install -y libibverbs1"):
        MooncakeStore(options)


def test_listing_at_a_wrong_port_names_the_option() -> None:
    port = ReservedPort()
    options = MooncakeOptions(master_server_address="127.0.0.1:1", master_metrics_port=port.number)

    with MooncakeStore(options) as store, pytest.raises(StoreUnavailable, match=r"option master_metrics_port"):
        list(store.list_keys())


def test_listing_at_the_port_of_another_server_names_the_option() -> None:
    with stub_server() as stub:
        options = MooncakeOptions(
            master_server_address="127.0.0.1:1", master_metrics_port=int(stub.url.rpartition(":")[2])
        )

        with MooncakeStore(options) as store, pytest.raises(StoreUnavailable, match=r"option master_metrics_port.*404"):
            list(store.list_keys())
