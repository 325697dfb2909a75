"""From what an operator types to an open store, and what is said on the way when it does not work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from hicache_storage import registry
from hicache_storage.backends.file import FileStore
from hicache_storage.config import Secret, Setting, from_mapping, option
from hicache_storage.errors import ConfigError
from hicache_storage.registry import known_backends, open_store, resolve_store
from hicache_storage.store import ObjectStore
from hicache_storage.testing.memory import MemoryStore
from hicache_storage.types import Capabilities, ObjectInfo, ReadableBuffer, WritableBuffer, WriteResult

HERE = __name__


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOptions:
    url: str = option(doc="where the service is")
    password: Secret | None = option(None, doc="password")
    timeout_s: float = option(1.0, doc="seconds")


class UnfinishedStore(ObjectStore):
    name = "unfinished"
    options_type = CloudOptions

    def stat(self, key: str) -> ObjectInfo | None: ...


class WholeStore(ObjectStore):
    """Everything but the two class attributes."""

    capabilities = Capabilities()

    def write(self, key: str, parts: Sequence[ReadableBuffer]) -> WriteResult: ...  # type: ignore[empty-body]

    def read_into(  # type: ignore[empty-body]
        self, key: str, offset: int, targets: Sequence[WritableBuffer], *, object_nbytes: int | None = None
    ) -> bool: ...

    def stat(self, key: str) -> ObjectInfo | None: ...

    def delete(self, key: str) -> bool: ...  # type: ignore[empty-body]

    def list_keys(self, prefix: str = "") -> Iterator[ObjectInfo]: ...  # type: ignore[empty-body]


class CloudStore(WholeStore):
    name = "cloud"
    options_type = CloudOptions


class NamelessStore(WholeStore):
    options_type = CloudOptions


class OptionlessStore(WholeStore):
    name = "optionless"


class DictOptionsStore(WholeStore):
    name = "dict"
    options_type = dict


@dataclass
class PlainOptions:
    path: str = ""


class PlainOptionsStore(WholeStore):
    name = "plain"
    options_type = PlainOptions


class NotAStore:
    name = "not"


def refusal(target: str, options: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        open_store(target, options)
    return str(caught.value)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points that are installed; a test may add its own."""
    points: list[EntryPoint] = [
        EntryPoint("file", "hicache_storage.backends.file:FileStore", registry.ENTRY_POINT_GROUP),
        EntryPoint("cloud", f"{HERE}:CloudStore", registry.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(
        registry, "entry_points", lambda *, group: points if group == registry.ENTRY_POINT_GROUP else []
    )
    return points


def entry_point(name: str, value: str, package: str, *, extras: str = "") -> EntryPoint:
    """Return an entry point as the package named *package* would register it."""

    class Installed(Distribution):
        def read_text(self, filename: str) -> str | None:
            return f"Name: {package}\nVersion: 1\n{extras}" if filename == "METADATA" else None

        def locate_file(self, path: object) -> Path:
            raise NotImplementedError

    point = EntryPoint(name, value, registry.ENTRY_POINT_GROUP)
    vars(point)["dist"] = Installed()
    return point


# -- three ways to name a store ----------------------------------------------------------------


def test_a_store_opens_by_name_and_options(tmp_path: Path) -> None:
    with open_store("file", {"path": str(tmp_path / "kv")}) as store:
        assert isinstance(store, FileStore)
        store.write("k", [b"v"])

    assert [path.name for path in (tmp_path / "kv").rglob("k")] == ["k"]


def test_a_store_opens_by_url(tmp_path: Path) -> None:
    with open_store(f"file://{tmp_path}/kv") as store:
        store.write("k", [b"v"])

    assert [path.name for path in (tmp_path / "kv").rglob("k")] == ["k"]


def test_a_store_opens_by_module_and_class() -> None:
    with open_store("hicache_storage.testing.memory:MemoryStore", {"capacity_nbytes": "1KiB"}) as store:
        assert isinstance(store, MemoryStore)


def test_the_backends_of_this_package_are_registered() -> None:
    assert {"file", "memory"} <= known_backends().keys()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///mnt/kv", {"path": Path("/mnt/kv")}),
        ("FILE:///mnt/kv", {"path": Path("/mnt/kv")}),
        ("file://localhost/mnt/kv", {"path": Path("/mnt/kv")}),
        ("file:///with%20space%23and%3f", {"path": Path("/with space#and?")}),
        ("file:///ends%ff", {"path": Path("/ends\udcff")}),
        ("file:///mnt/kv?io_threads=3&direct=true", {"path": Path("/mnt/kv"), "io_threads": 3, "direct": True}),
        ("file:///mnt/kv?max_size=10%20GiB", {"path": Path("/mnt/kv"), "capacity_nbytes": 10 << 30}),
        ("file://?path=/mnt/kv", {"path": Path("/mnt/kv")}),
    ],
)
def test_a_urls_parts_are_options(url: str, expected: dict[str, object]) -> None:
    settings = {setting.name: setting for setting in resolve_store(url, {}, {}).settings}

    assert {name: setting.value for name, setting in settings.items() if setting.source == "URL"} == expected


def test_a_backend_with_a_url_option_gets_host_and_path(registered: list[EntryPoint]) -> None:
    resolved = resolve_store("cloud://user@host:1234/bucket?timeout_s=2", {}, {})

    assert resolved.options == CloudOptions(url="cloud://user@host:1234/bucket", timeout_s=2.0)


def test_url_and_extra_config_and_environment_come_together() -> None:
    extra = from_mapping({"io_threads": 4}, "extra config")

    resolved = resolve_store("file:///mnt/kv", extra, {"HICACHE_FILE_FSYNC": "data"})

    sources = {setting.name: setting.source for setting in resolved.settings}
    assert sources["path"] == "URL"
    assert sources["io_threads"] == "extra config"
    assert sources["fsync"] == "environment variable HICACHE_FILE_FSYNC"
    assert sources["eviction_ratio"] == "default"


def test_the_url_is_named_as_the_source_of_what_both_say() -> None:
    resolved = resolve_store("file:///mnt/kv", from_mapping({"path": "/mnt/kv/"}, "extra config"), {})

    assert [setting.source for setting in resolved.settings if setting.name == "path"] == ["URL"]


def test_resolving_opens_nothing(tmp_path: Path) -> None:
    resolve_store(f"file://{tmp_path}/kv", {}, {})

    assert list(tmp_path.iterdir()) == []


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["flie", "flie:///mnt/kv", "", "/mnt/kv"])
def test_an_unknown_backend_lists_the_known_ones(registered: list[EntryPoint], target: str) -> None:
    assert "known are cloud, file; any other class can be named as module:Class" in refusal(target)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("file://mnt/kv", "a path starts with three slashes, file:///folder"),
        ("file://[::1/kv", "its host cannot be read"),
        ("file://user:sesame\u2100@host/kv", "its host cannot be read"),
        ("://mnt/kv", "what stands before :// can be no backend's name"),
        ("my_store://mnt/kv", "what stands before :// can be no backend's name"),
        ("file:///mnt/kv#2", "it has a '#', which is written %23"),
        ("file:///mnt/kv#", "it has a '#', which is written %23"),
        ("file:///mnt/kv?sesame", "behind its ? stands something else"),
        ("file:///mnt/kv?io_threads=1&&direct=1", "behind its ? stands something else"),
        ("file:///mnt/kv?path=%ff", "behind its ? stands something else"),
    ],
)
def test_a_bad_url_says_what_is_wrong_and_never_shows_itself(url: str, why: str) -> None:
    message = refusal(url)

    assert why in message
    assert "expected <backend>://<host or nothing>/<path>?option=value" in message
    assert "sesame" not in message


@pytest.mark.parametrize("url", ["file:///mnt/kv?direct=1&direct=0", "file:///mnt/kv?path=/other"])
def test_an_option_twice_in_a_url_is_refused(url: str) -> None:
    assert "is given twice in the URL of backend file" in refusal(url)


def test_a_url_without_a_path_leaves_it_to_the_other_sources() -> None:
    resolved = resolve_store("file://", {}, {"HICACHE_FILE_PATH": "/mnt/kv"})

    assert resolved.settings[0] == Setting("path", Path("/mnt/kv"), "environment variable HICACHE_FILE_PATH")


def test_a_backend_without_a_path_says_so() -> None:
    assert refusal("memory:///mnt") == "backend memory has no path: expected memory://?option=value"


def test_an_unknown_option_in_a_url_names_the_url() -> None:
    assert refusal("file:///mnt/kv?io_thread=4").endswith("(from URL); did you mean io_threads?")


@pytest.mark.parametrize(
    "target",
    ["no_such_module:Store", "os:NoSuchClass", ":Store", "os:", ".relative:Store", "file:/mnt/kv", "os:path.join"],
)
def test_a_class_that_cannot_be_imported_says_what_is_expected(target: str) -> None:
    message = refusal(target)

    assert message.startswith(f"backend {target!r} cannot be imported: ")
    assert message.endswith("expected module:Class")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("NotAStore", "is no subclass of hicache_storage.ObjectStore"),
        ("refusal", "is no subclass of hicache_storage.ObjectStore"),
        ("NamelessStore", "has no class attribute 'name'"),
        ("OptionlessStore", "has no class attribute 'options_type'"),
        ("UnfinishedStore", "lacks delete, list_keys, read_into, write"),
        ("DictOptionsStore", "must be a dataclass of hicache_storage.config.option() fields"),
        ("PlainOptionsStore", "must be a dataclass of hicache_storage.config.option() fields"),
    ],
)
def test_a_class_that_is_no_backend_is_refused_before_it_is_constructed(name: str, why: str) -> None:
    assert why in refusal(f"{HERE}:{name}")


# -- packages ----------------------------------------------------------------------------------


def test_a_missing_sdk_says_which_extra_to_install(registered: list[EntryPoint]) -> None:
    extras = "Provides-Extra: s3\nProvides-Extra: redis\n"
    registered.append(entry_point("s3", "no_such_sdk:S3Store", "hicache-storage", extras=extras))

    assert refusal("s3://bucket") == (
        "backend 's3' needs a package that is not installed (No module named 'no_such_sdk'): "
        "pip install 'hicache-storage[s3]'"
    )


def test_a_missing_package_of_a_third_party_names_the_third_party(registered: list[EntryPoint]) -> None:
    registered.append(entry_point("tape", "no_such_sdk:TapeStore", "tape-robot"))

    assert refusal("tape").endswith("pip install 'tape-robot'")


def test_a_registered_class_that_does_not_exist_names_the_package(registered: list[EntryPoint]) -> None:
    registered.append(entry_point("tape", "hicache_storage.testing.memory:TapeStore", "tape-robot"))

    assert "backend 'tape' of tape-robot cannot be loaded" in refusal("tape")


def test_a_registered_class_that_is_no_store_is_refused(registered: list[EntryPoint]) -> None:
    registered.append(entry_point("tape", f"{HERE}:NotAStore", "tape-robot"))

    assert refusal("tape") == f"{HERE}:NotAStore is no subclass of hicache_storage.ObjectStore"


def test_two_packages_with_one_name_are_refused_with_both_names(registered: list[EntryPoint]) -> None:
    registered.append(entry_point("tape", "a:Store", "tape-robot"))
    registered.append(entry_point("tape", "b:Store", "ticker-tape"))

    message = refusal("file:///mnt/kv")

    assert "two packages register the backend 'tape'" in message
    assert "tape-robot (a:Store) and ticker-tape (b:Store)" in message


def test_one_package_found_twice_is_no_duplicate(registered: list[EntryPoint]) -> None:
    registered.append(entry_point("cloud", f"{HERE}:CloudStore", "hicache-storage"))

    assert known_backends().keys() == {"file", "cloud"}


# -- looking -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeOptions:
    create: bool = option(default=True, doc="load a new tape if there is none")
    label: str = option("kv", doc="what is written on the tape")


class TapeStore(WholeStore):
    name = "tape"
    options_type: ClassVar[type] = TapeOptions

    def __init__(self, options: object) -> None:
        self.options = options


@dataclass(frozen=True, slots=True, kw_only=True)
class PotteryOptions:
    create: str = option("vases", doc="what to make")


class PotteryStore(TapeStore):
    name = "pottery"
    options_type = PotteryOptions


def opened_with(target: str, *, looking: bool, **options: object) -> object:
    with open_store(f"{HERE}:{target}", options, looking=looking) as store:
        assert isinstance(store, TapeStore)
        return store.options


def test_looking_turns_create_off_and_leaves_every_other_option() -> None:
    assert opened_with("TapeStore", looking=True, label="old") == TapeOptions(create=False, label="old")
    assert opened_with("TapeStore", looking=True, create=True) == TapeOptions(create=False)
    assert opened_with("TapeStore", looking=False) == TapeOptions(create=True)


def test_looking_leaves_another_meaning_of_create_alone() -> None:
    assert opened_with("PotteryStore", looking=True) == PotteryOptions(create="vases")


def test_looking_opens_a_store_without_such_an_option() -> None:
    with open_store("memory", looking=True) as store:
        assert list(store.list_keys()) == []


# -- secrets and weight ------------------------------------------------------------------------


def test_a_resolved_store_can_be_printed(registered: list[EntryPoint]) -> None:
    resolved = resolve_store("cloud://host/?password=sesame", {}, {})

    assert resolved.options == CloudOptions(url="cloud://host/", password=Secret("sesame"))
    assert "sesame" not in repr(resolved) + repr(SimpleNamespace(it=resolved))


def test_naming_a_store_loads_no_backend_but_its_own() -> None:
    script = (
        "import sys; from hicache_storage.registry import open_store; open_store('memory').close(); "
        "print([m for m in sys.modules if m.startswith('hicache_storage.backends') or m in ('torch', 'pytest', 'yaml')])"
    )

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert loaded.stdout == "[]\n"
