"""Where the answers ``MOVED`` and ``ASK`` lead, as servers of all kinds write them."""

from __future__ import annotations

import socket

import pytest

from hicache_storage.backends.redis import topology
from hicache_storage.backends.redis.connect import Address
from hicache_storage.backends.redis.topology import Cluster
from hicache_storage.backends.redis.wire import Patience, Wire
from hicache_storage.errors import StoreUnavailable
from hicache_storage.types import WriteResult
from tests.backends.redis.stub import StubRedis
from tests.backends.redis.test_faults import store_at

_SAID_BY = Address("asked.example", 6379)


@pytest.fixture
def cluster() -> Cluster:
    """What is known of a cluster before anybody was asked; it asks nobody."""

    def connect(address: Address, _: Patience) -> Wire:
        raise AssertionError(address)

    return Cluster([_SAID_BY], connect)


@pytest.mark.parametrize(
    ("where", "address"),
    [
        ("10.0.0.7:6381", Address("10.0.0.7", 6381)),
        ("node.example:6381", Address("node.example", 6381)),
        ("2001:db8::7:6381", Address("2001:db8::7", 6381)),
        ("[2001:db8::7]:6381", Address("2001:db8::7", 6381)),
        (":6381", Address("asked.example", 6381)),
        ("?:6381", Address("asked.example", 6381)),
        ("nowhere", None),
        ("10.0.0.7:0", None),
        ("10.0.0.7:x", None),
    ],
)
@pytest.mark.parametrize("code", ["MOVED", "ASK"])
def test_a_redirection_leads_to_the_address_that_it_names(
    cluster: Cluster, code: str, where: str, address: Address | None
) -> None:
    assert cluster.redirected(_SAID_BY, f"{code} 3999 {where}") == address


@pytest.mark.parametrize("text", ["MOVED", "MOVED 3999", "MOVED x 10.0.0.7:6381", "MOVED 99999 10.0.0.7:6381"])
def test_a_redirection_that_makes_no_sense_leads_nowhere(cluster: Cluster, text: str) -> None:
    assert cluster.redirected(_SAID_BY, text) is None


def slots(port: int, last: int = 16383) -> bytes:
    """Return the answer of a node that holds the slots up to *last*."""
    return b"*1\r\n*3\r\n:0\r\n:%d\r\n*2\r\n$-1\r\n:%d\r\n" % (last, port)


def test_a_node_that_does_not_know_its_host_is_followed_on_the_one_that_was_asked() -> None:
    """As with ``cluster-preferred-endpoint-type unknown-endpoint``, behind a load balancer."""

    def redirect(connection: socket.socket, words: list[bytes]) -> None:
        if words[0] == b"CLUSTER":
            connection.sendall(slots(first.port))
        else:
            connection.sendall(b"-MOVED 1 :%d\r\n" % second.port)

    with (
        StubRedis(redirect) as first,
        StubRedis(lambda connection, _: connection.sendall(b"+OK\r\n")) as second,
        store_at(first.url, mode="cluster") as store,
    ):
        assert store.write("a", [b"0123"]) is WriteResult.STORED


def test_redirections_that_lead_in_a_circle_end_and_say_so() -> None:
    def redirect(connection: socket.socket, words: list[bytes]) -> None:
        connection.sendall(slots(node.port) if words[0] == b"CLUSTER" else b"-MOVED 1 :%d\r\n" % node.port)

    with StubRedis(redirect) as node, store_at(node.url, mode="cluster") as store:
        with pytest.raises(StoreUnavailable, match="MOVED") as caught:
            store.stat("a")

        assert caught.value.key == "a"


def test_a_slot_that_nobody_had_is_found_once_somebody_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "_ASK_AGAIN_AFTER_S", -1.0)
    last = 0

    def answer(connection: socket.socket, words: list[bytes]) -> None:
        connection.sendall(slots(node.port, last) if words[0] == b"CLUSTER" else b"+OK\r\n")

    with StubRedis(answer) as node, store_at(node.url, mode="cluster") as store:
        with pytest.raises(StoreUnavailable, match="slot"):
            store.write("a", [b"0123"])
        last = 16383

        assert store.write("a", [b"0123"]) is WriteResult.STORED
