from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache_storage.backends.redis import RedisOptions, RedisStore
from hicache_storage.backends.redis.exchange import Call, Exchange, Trip
from hicache_storage.config import Secret
from hicache_storage.errors import CorruptObject, StoreError, StoreFull, StoreUnavailable
from hicache_storage.layout.trailer import BlockHasher
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.hooks import fetched
from hicache_storage.testing.services.redis_server import RedisServer
from hicache_storage.types import ObjectWrite, RangeRead, Status, WriteResult
from tests.backends.redis.back_door import PATIENT_S, RedisService, redis_key

pytest_plugins = ["tests.backends.redis.services"]

_CHUNK = 1024
_BODY = body_of("large", 10 * _CHUNK + 7)
_OTHER = body_of("other", 3 * _CHUNK)
_SMALL = body_of("small", 100)


@pytest.fixture
def options(service: RedisService) -> RedisOptions:
    return service.options(chunk_nbytes=_CHUNK)


def chunks(service: RedisService, options: RedisOptions) -> set[bytes]:
    return {name for name in service.names(options) if name.startswith(b"{")}


def test_no_value_is_over_the_limit(service: RedisService, options: RedisOptions) -> None:
    with RedisStore(options) as store:
        store.write("exact", [bytes(_CHUNK)])
        store.write("large", [_BODY[:5000], _BODY[5000:]])

    assert service.client.type(redis_key(options, "exact")) == b"string"
    assert len(chunks(service, options)) == 11
    assert max(service.client.strlen(name) for name in chunks(service, options)) == _CHUNK


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, len(_BODY)), (0, 1), (1023, 2), (1024, 1024), (1000, 5000), (10_240, 7), (len(_BODY), 0), (5, 0)],
)
def test_any_range_is_read(options: RedisOptions, offset: int, length: int) -> None:
    with RedisStore(options) as store:
        store.write("a", [_BODY])
        promised: list[int] = []
        left, right = poisoned(length // 3), poisoned(length - length // 3)

        [outcome] = store.read_many([RangeRead("a", offset, [left, right], len(_BODY), promised.append)])

        assert outcome.status is Status.HIT
        assert left + right == _BODY[offset : offset + length]
        assert promised == sorted(promised)
        assert all(nbytes <= length for nbytes in promised)


def test_a_reader_with_another_limit_reads_it(service: RedisService, options: RedisOptions) -> None:
    with RedisStore(options) as writer, RedisStore(service.options(key_prefix=options.key_prefix)) as reader:
        writer.write("a", [_BODY])

        assert fetched(reader, "a", 3, 9000) == _BODY[3:9003]
        assert reader.write("a", [_BODY]) is WriteResult.ALREADY_THERE
        assert reader.delete("a")

    assert service.names(options) == set()


@pytest.mark.parametrize("first", [_BODY, _OTHER, _SMALL], ids=len)
@pytest.mark.parametrize("then", [_BODY[:-1], _SMALL[:-1]], ids=len)
def test_a_replaced_object_leaves_nothing_behind(
    service: RedisService, options: RedisOptions, first: bytes, then: bytes
) -> None:
    with RedisStore(options) as store:
        store.write("a", [first])

        assert store.write("a", [then]) is WriteResult.STORED

        assert service.observe(options, "a") == then
    wanted = -(-len(then) // _CHUNK) if len(then) > _CHUNK else 0
    assert len(chunks(service, options)) == wanted


def test_a_deleted_object_leaves_nothing_behind(service: RedisService, options: RedisOptions) -> None:
    with RedisStore(options) as store:
        store.write_many([ObjectWrite(key, [_BODY]) for key in ("a", "b")])

        assert [outcome.status for outcome in store.delete_many(["a", "missing", "b"])] == [
            Status.HIT, Status.MISS, Status.HIT
        ]  # fmt: skip

    assert service.names(options) == set()


def test_a_missing_chunk_is_damage_and_heals(service: RedisService, options: RedisOptions) -> None:
    with RedisStore(options) as store:
        store.write("a", [_BODY])
        service.client.delete(sorted(chunks(service, options))[4])

        with pytest.raises(CorruptObject):
            fetched(store, "a", 0, len(_BODY))
        assert store.quarantine("a")
        assert store.write("a", [_BODY]) is WriteResult.STORED

        assert fetched(store, "a", 0, len(_BODY)) == _BODY
    assert len(chunks(service, options)) == 11


def test_what_a_reader_hashed_of_an_object_that_was_replaced_meanwhile_is_hashed_again(
    service: RedisService, options: RedisOptions
) -> None:
    replacement = body_of("replacement", len(_BODY))
    target = bytearray(len(_BODY))
    hasher = BlockHasher(memoryview(target), 512, seed=0)
    with RedisStore(options) as store, RedisStore(options) as other:
        store.write("a", [_BODY])
        service.client.delete(next(name for name in chunks(service, options) if name.endswith(b":4")))

        def replace_and_hash(nbytes: int) -> None:
            if service.observe(options, "a") != replacement:
                other.delete_many(["a"])
                other.write("a", [replacement])
            hasher.advance(nbytes)

        [outcome] = store.read_many([RangeRead("a", 0, [target], len(_BODY), replace_and_hash)])

    assert (outcome.status, bytes(target)) == (Status.HIT, replacement)
    assert hasher.packed() == BlockHasher(memoryview(replacement), 512, seed=0).packed()


def test_chunks_that_come_out_of_order_are_hashed_in_order(
    options: RedisOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do while a cluster moves a slot: what has been moved is asked for once more, elsewhere."""
    ask = Exchange.all

    def last_first(exchange: Exchange, calls: Sequence[Call[bool]], trip: Trip) -> list[bool | StoreError]:
        return ask(exchange, calls[::-1], trip)[::-1]

    target = bytearray(len(_BODY))
    hasher = BlockHasher(memoryview(target), 512, seed=0)
    with RedisStore(options) as store:
        store.write("a", [_BODY])
        monkeypatch.setattr(Exchange, "all", last_first)
        [outcome] = store.read_many([RangeRead("a", 0, [target], len(_BODY), hasher.advance)])

    assert outcome.status is Status.HIT
    assert hasher.packed() == BlockHasher(memoryview(_BODY), 512, seed=0).packed()


def test_a_short_chunk_is_damage(service: RedisService, options: RedisOptions) -> None:
    with RedisStore(options) as store:
        store.write("a", [_BODY])
        service.client.set(sorted(chunks(service, options))[4], b"x")

        with pytest.raises(CorruptObject):
            fetched(store, "a", 0, len(_BODY))


def test_chunks_that_are_not_published_are_no_object_and_go_by_themselves(
    service: RedisService, options: RedisOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with RedisStore(options) as store:
        monkeypatch.setattr("hicache_storage.backends.redis.large.LargeObjects._publish", die)
        with pytest.raises(Killed):
            store.write("a", [_BODY])

        assert store.stat("a") is None
        assert list(store.list_keys()) == []
        assert len(chunks(service, options)) == 11
        assert all(0 < service.client.ttl(name) <= 600 for name in chunks(service, options))


def test_an_object_whose_publication_was_carried_out_but_not_answered_is_whole(
    options: RedisOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Exchange.one

    def lose_the_answer(exchange: Exchange, call: Call[bool], trip: Trip) -> bool:
        answer = ask(exchange, call, trip)
        if b"HSET" in call.head:
            raise StoreUnavailable("the server closed the connection")
        return answer

    with RedisStore(options) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Exchange, "one", lose_the_answer)
            with pytest.raises(StoreUnavailable):
                store.write("a", [_BODY])

        assert store.write("a", [_BODY]) is WriteResult.ALREADY_THERE
        assert fetched(store, "a", 0, len(_BODY)) == _BODY


def test_a_published_object_stays(service: RedisService, options: RedisOptions) -> None:
    with RedisStore(options) as store:
        store.write("a", [_BODY])

    assert {service.client.ttl(name) for name in service.names(options)} == {-1}


@pytest.mark.parametrize("body", [_SMALL, _BODY], ids=["one value", "chunked"])
def test_objects_live_for_their_time_and_longer_if_touched_or_written_again(service: RedisService, body: bytes) -> None:
    options = service.options(chunk_nbytes=_CHUNK, ttl_s=1000.0)
    with RedisStore(options) as store:
        assert store.capabilities.ttl
        store.write("a", [body])
        names = service.names(options)
        assert all(900 < service.client.ttl(name) <= 1000 for name in names)

        for again in (lambda: store.touch_many(["a"]), lambda: store.write("a", [body])):
            for name in names:
                service.client.expire(name, 50)
            again()
            assert all(900 < service.client.ttl(name) <= 1000 for name in names)


@pytest.mark.parametrize("nbytes", [100, 40_000, 100_000], ids=["sent at once", "looked at first", "chunked"])
def test_an_object_that_goes_before_a_write_has_made_it_live_longer_is_stored_again(
    service: RedisService, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    options = service.options(chunk_nbytes=64 << 10, ttl_s=1000.0)
    body, ask = body_of("goes", nbytes), Exchange.all
    gone: list[bytes] = []

    def expire_first(exchange: Exchange, calls: Sequence[Call[bool]], trip: Trip) -> list[bool | StoreError]:
        if not gone and any(b"PEXPIRE" in call.head for call in calls):
            gone.extend(service.names(options))
            service.client.delete(*gone)
        return ask(exchange, calls, trip)

    with RedisStore(options) as store:
        store.write("a", [body])
        monkeypatch.setattr(Exchange, "all", expire_first)

        assert store.write("a", [body]) is WriteResult.STORED

        assert gone
        assert service.observe(options, "a") == body


def test_a_full_server_keeps_no_part_of_a_refused_object(own_server: RedisServer) -> None:
    options = RedisOptions(
        url=Secret(own_server.url), chunk_nbytes=100_000, pipeline_nbytes=100_000, deadline_s=PATIENT_S
    )
    with RedisStore(options) as store:
        used = int(own_server.ask("INFO", "memory").split(b"used_memory:")[1].split()[0])
        own_server.ask("CONFIG", "SET", "maxmemory", used + (4 << 20))

        with pytest.raises(StoreFull):
            store.write("a", [bytes(8 << 20)])

        assert store.stat("a") is None
        assert own_server.ask("DBSIZE") == b":0\r\n"
