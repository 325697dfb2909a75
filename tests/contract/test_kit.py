"""Nobody can silence the kit, and it says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest

from hicache_storage.errors import Unsupported
from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import HOSTILE_KEYS, StoreContract
from hicache_storage.testing.laws_keys import KeyLaws
from hicache_storage.testing.laws_write import WriteLaws
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import Capabilities, ObjectInfo, ReadableBuffer, WriteResult, nbytes_of

pytest_plugins = ["pytester"]

PREAMBLE = """
import pytest
from hicache_storage.testing.contract import StoreContract
from hicache_storage.testing.memory import MemoryStore

class MemoryContract(StoreContract):
    shared_between_processes = False
    bounded = False

    @pytest.fixture
    def store(self):
        return MemoryStore()

    def plant(self, store, key, body):
        store._objects[key] = body

    def observe(self, store, key):
        return store._objects.get(key)
"""


class LimitedStore(MemoryStore):
    capabilities = Capabilities(listing=False, durable=False, max_object_nbytes=3 << 20, max_key_nbytes=64)

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult:
        if sum(map(nbytes_of, parts)) > 3 << 20:
            raise Unsupported("too large", backend=self.name, op="write", key=key)
        return super().write(key, parts)

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        raise Unsupported("cannot list", backend=self.name, op="list")


class TestAStoreThatSaysWhatItCannotDoObeysTheLaws(KeyLaws, WriteLaws):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return LimitedStore()

    def plant(self, store: ObjectStore, key: str, body: bytes) -> None:
        assert isinstance(store, MemoryStore)
        store._objects[key] = body

    def observe(self, store: ObjectStore, key: str) -> bytes | None:
        assert isinstance(store, MemoryStore)
        return store._objects.get(key)


def test_a_law_cannot_be_replaced() -> None:
    with pytest.raises(TypeError, match="test_a_missing_object_is_an_answer"):

        class Silenced(StoreContract):
            def test_a_missing_object_is_an_answer(self, store: ObjectStore, length: int) -> None:
                assert True


def test_a_law_cannot_be_removed() -> None:
    with pytest.raises(TypeError, match="test_keys_never_collide"):

        class Silenced(StoreContract):
            test_keys_never_collide = None  # type: ignore[assignment]  # this is how a law is switched off


def test_a_law_cannot_be_replaced_by_a_mixin() -> None:
    class Mixin:
        def test_keys_never_collide(self, store: ObjectStore) -> None:
            assert True

    with pytest.raises(TypeError, match="test_keys_never_collide"):

        class Silenced(Mixin, StoreContract):
            pass


def test_a_law_cannot_be_replaced_in_a_grandchild() -> None:
    class Child(StoreContract):
        pass

    with pytest.raises(TypeError, match="test_keys_never_collide"):

        class Silenced(Child):
            def test_keys_never_collide(self, store: ObjectStore) -> None:
                assert True


def test_what_turns_waivers_into_failures_cannot_be_replaced() -> None:
    with pytest.raises(TypeError, match="_honour_waivers"):

        class Silenced(StoreContract):
            @pytest.fixture(autouse=True)
            def _honour_waivers(self) -> None:
                pass


def test_a_waiver_must_name_a_law() -> None:
    with pytest.raises(TypeError, match="test_no_such_law"):

        class Waiving(StoreContract):
            waived: ClassVar = {"test_no_such_law": "there is a reason"}


def test_a_waiver_must_have_a_reason() -> None:
    with pytest.raises(TypeError, match="without a reason"):

        class Waiving(StoreContract):
            waived: ClassVar = {"test_keys_never_collide": " "}


def test_a_subclass_may_add_laws_of_its_own() -> None:
    class Extended(StoreContract):
        def test_something_of_its_own(self) -> None:
            pass

    assert Extended.waived == {}


def test_a_waived_law_that_is_obeyed_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        PREAMBLE
        + """
class TestWaiving(MemoryContract):
    waived = {"test_a_miss_is_not_remembered": "it was so once"}
"""
    )

    result = pytester.runpytest_inprocess("-k", "test_a_miss_is_not_remembered", "-p", "no:cacheprovider")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*XPASS(strict)*it was so once*"])


def test_a_waived_law_that_is_broken_is_an_expected_failure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        PREAMBLE
        + """
class Forgetful(MemoryStore):
    def write(self, key, parts):
        result = super().write(key, parts)
        self._objects.clear()
        return result

class TestWaiving(MemoryContract):
    waived = {"test_no_parts_are_an_empty_object": "it forgets"}

    @pytest.fixture
    def store(self):
        return Forgetful()
"""
    )

    result = pytester.runpytest_inprocess("-rx", "-k", "test_no_parts_are_an_empty_object", "-p", "no:cacheprovider")

    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(["XFAIL*it forgets"])


def test_a_hook_that_is_missing_is_an_error_and_not_a_skip(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        PREAMBLE
        + """
class TestForgotten(MemoryContract):
    shared_between_processes = True
    bounded = True
"""
    )

    result = pytester.runpytest_inprocess("-k", "two_instances or killed or full_store", "-p", "no:cacheprovider")

    result.assert_outcomes(failed=6)
    result.stdout.fnmatch_lines(["*define `second`*", "*define `opening_code`*", "*define the fixture `small_store`*"])


def test_a_broken_law_shows_both_values(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        PREAMBLE
        + """
class TestWrong(MemoryContract):
    def plant(self, store, key, body):
        store._objects[key] = b"abcd"
"""
    )

    result = pytester.runpytest_inprocess("-k", "test_a_miss_is_not_remembered", "-p", "no:cacheprovider")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*b'abcd' == b'0123'*"])


def test_hostile_keys_are_different() -> None:
    assert len(set(HOSTILE_KEYS)) == len(HOSTILE_KEYS)


@pytest.mark.parametrize("module", ["memory", "faults"])
def test_the_stores_of_the_kit_need_no_test_tools(module: str) -> None:
    code = f"import sys, hicache_storage.testing.{module}; print({{'pytest', 'hypothesis'}} & sys.modules.keys())"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout == "set()\n"
