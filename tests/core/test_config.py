"""Where an option's value comes from, and what is said when it cannot be one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from hicache_storage.config import (
    Secret,
    Setting,
    cache_folder,
    from_mapping,
    option,
    parse_nbytes,
    resolve,
)
from hicache_storage.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    path: Path = option(doc="folder of the store", aliases=("folder", "dir"))
    capacity_nbytes: int | None = option(None, doc="most bytes", parse=parse_nbytes, env=("STORE_SIZE", "OLD_SIZE"))
    io_threads: int = option(8, doc="threads that move data", aliases=("threads",))
    ratio: float = option(0.9, doc="share that is kept")
    direct: bool = option(False, doc="bypass the page cache")
    fsync: Literal["none", "data", "full"] = option("none", doc="what a write waits for")
    region: str | None = option(None, doc="where the bucket is")
    scratch: Path | None = option(None, doc="folder for spills")
    password: Secret | None = option(None, doc="password of the store", env=("STORE_PASSWORD",))


def options_from(values: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Options:
    given = {"path": "/mnt/kv"} | dict(values)
    return resolve(Options, "demo", [from_mapping(given, "extra config")], environ or {})[0]


def settings_from(
    *sources: tuple[str, Mapping[str, object]], environ: Mapping[str, str] | None = None
) -> dict[str, Setting]:
    given = [from_mapping(values, name) for name, values in sources]
    return {setting.name: setting for setting in resolve(Options, "demo", given, environ or {})[1]}


def refusal(values: Mapping[str, object], environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        options_from(values, environ)
    return str(caught.value)


# -- which source wins -------------------------------------------------------------------------


def test_the_first_source_that_has_a_value_wins() -> None:
    everything = {
        "HICACHE_DEMO_CAPACITY_NBYTES": "3",
        "STORE_SIZE": "4",
        "OLD_SIZE": "5",
    }
    last = {"OLD_SIZE": "5"}

    def capacity(source: Mapping[str, object], environ: Mapping[str, str]) -> tuple[object, str]:
        setting = settings_from(("URL", {"path": "/x"}), ("extra config", source), environ=environ)["capacity_nbytes"]
        return setting.value, setting.source

    assert capacity({"capacity_nbytes": 2}, everything) == (2, "extra config")
    assert capacity({}, everything) == (3, "environment variable HICACHE_DEMO_CAPACITY_NBYTES")
    assert capacity({}, everything | {"HICACHE_DEMO_CAPACITY_NBYTES": ""}) == (4, "environment variable STORE_SIZE")
    assert capacity({}, last) == (5, "environment variable OLD_SIZE")
    assert capacity({}, {}) == (None, "default")


def test_every_option_says_where_its_value_came_from() -> None:
    settings = settings_from(
        ("URL", {"path": "/x", "io_threads": "4"}),
        ("extra config", {"fsync": "data"}),
        environ={"HICACHE_DEMO_RATIO": "0.5"},
    )

    assert {name: setting.source for name, setting in settings.items()} == {
        "path": "URL",
        "capacity_nbytes": "default",
        "io_threads": "URL",
        "ratio": "environment variable HICACHE_DEMO_RATIO",
        "direct": "default",
        "fsync": "extra config",
        "region": "default",
        "scratch": "default",
        "password": "default",
    }


def test_provenance_holds_the_values_that_the_options_hold() -> None:
    given = from_mapping({"path": "/x", "capacity_nbytes": "1KiB", "direct": "true"}, "URL")

    options, settings = resolve(Options, "demo", [given], {})

    assert {s.name: s.value for s in settings} == {
        f.name: getattr(options, f.name) for f in dataclasses.fields(options)
    }


def test_an_alias_stands_for_its_option() -> None:
    assert settings_from(("URL", {"folder": "/x"}))["path"].value == Path("/x")
    assert settings_from(("URL", {"dir": "/x", "threads": 2}))["io_threads"].value == 2


def test_two_sources_may_say_the_same() -> None:
    settings = settings_from(
        ("URL", {"path": "/x", "io_threads": "4"}), ("extra config", {"folder": "/x/", "threads": 4})
    )

    assert settings["io_threads"] == Setting("io_threads", 4, "URL")
    assert settings["path"].source == "URL"


def test_two_sources_that_contradict_each_other_are_refused_with_both_values() -> None:
    with pytest.raises(ConfigError, match=r"io_threads is given twice: 4 in URL and 8 in extra config"):
        settings_from(("URL", {"path": "/x", "io_threads": "4"}), ("extra config", {"threads": 8}))


def test_an_alias_beside_its_option_in_one_source_is_a_contradiction_too() -> None:
    with pytest.raises(ConfigError, match=r"path is given twice: '/x' in URL and '/y' in URL"):
        settings_from(("URL", {"path": "/x", "folder": "/y"}))


def test_a_call_may_contradict_the_environment() -> None:
    assert options_from({"io_threads": 2}, {"HICACHE_DEMO_IO_THREADS": "64"}).io_threads == 2


def test_the_process_environment_is_read_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_DEMO_PATH", "/from/environment")

    assert resolve(Options, "demo", [])[0].path == Path("/from/environment")


def test_the_cache_folder_follows_the_desktops_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/op")

    assert cache_folder({}) == cache_folder({"XDG_CACHE_HOME": ""}) == Path("/home/op/.cache/hicache_storage")
    assert cache_folder({"XDG_CACHE_HOME": "/scratch"}) == Path("/scratch/hicache_storage")


def test_a_user_without_a_home_can_still_import_and_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)

    assert cache_folder({}) == Path("~/.cache/hicache_storage")


def test_a_backends_name_makes_a_variable_that_a_shell_can_set() -> None:
    options, _ = resolve(Options, "my-store.v2", [], {"HICACHE_MY_STORE_V2_PATH": "/x"})

    assert options.path == Path("/x")


# -- what is refused ---------------------------------------------------------------------------


def test_an_unknown_option_names_itself_its_source_and_the_nearest_one() -> None:
    assert refusal({"io_thread": 4}) == "demo has no option 'io_thread' (from extra config); did you mean io_threads?"


def test_an_unknown_option_without_a_neighbour_lists_what_there_is() -> None:
    message = refusal({"zzz": 4})

    assert "'zzz'" in message
    assert all(field.name in message for field in dataclasses.fields(Options))


def test_a_missing_option_says_what_it_is() -> None:
    with pytest.raises(ConfigError, match=r"demo option path is required: folder of the store"):
        resolve(Options, "demo", [], {})


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("io_threads", "eight", "a whole number"),
        ("io_threads", 1.5, "a whole number"),
        ("io_threads", True, "a whole number"),
        ("io_threads", None, "a whole number"),
        ("ratio", "most", "a number"),
        ("ratio", "nan", "a number"),
        ("direct", "yes", "true or false"),
        ("direct", 2, "true or false"),
        ("fsync", "disk", "'none' or 'data' or 'full'"),
        ("region", 7, "text or null"),
        ("path", "", "a path that is not empty"),
        ("path", "a\0b", "no NUL"),
        ("path", ["/x"], "a path"),
        ("scratch", 7, "a path or null"),
        ("capacity_nbytes", "10 parsecs", "expected bytes, such as"),
        ("capacity_nbytes", -1, "a size is not negative"),
        ("capacity_nbytes", [], "expected bytes, such as"),
    ],
)
def test_a_bad_value_names_itself_its_source_and_what_would_be_right(name: str, value: object, right: str) -> None:
    message = refusal({name: value})

    assert message.startswith(f"demo option {name} = {value!r} from extra config: ")
    assert right in message
    doc = next(field.metadata["doc"] for field in dataclasses.fields(Options) if field.name == name)
    assert message.endswith(f"({doc})")


@pytest.mark.parametrize("value", ["eight", "8 threads", "0x10", "1e999", "9" * 5000, "\udcff", "8\n8", "${THREADS}"])
def test_a_hostile_environment_variable_is_a_config_error_that_names_it(value: str) -> None:
    message = refusal({}, {"HICACHE_DEMO_IO_THREADS": value})

    assert "environment variable HICACHE_DEMO_IO_THREADS" in message
    assert len(message) < 500


@pytest.mark.parametrize("name", ["PATH", "CAPACITY_NBYTES", "RATIO", "DIRECT", "FSYNC", "SCRATCH", "PASSWORD"])
def test_an_environment_variable_set_to_nothing_is_not_set(name: str) -> None:
    assert options_from({}, {f"HICACHE_DEMO_{name}": ""}) == options_from({})


def test_a_users_home_that_is_unknown_is_a_config_error() -> None:
    assert "path = '~nobody-of-this-name/kv'" in refusal({"path": "~nobody-of-this-name/kv"})


def test_a_parser_that_fails_on_an_odd_type_is_a_config_error() -> None:
    @dataclass(frozen=True)
    class Ages:
        days: int = option(1, doc="days", parse=int)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"demo option days = \[\] from URL"):
        resolve(Ages, "demo", [from_mapping({"days": []}, "URL")], {})


def test_options_that_do_not_fit_together_are_a_config_error() -> None:
    @dataclass(frozen=True)
    class Limits:
        low: int = option(1, doc="low")
        high: int = option(2, doc="high")

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low is above high")

    with pytest.raises(ConfigError, match="demo options do not fit together: low is above high"):
        resolve(Limits, "demo", [from_mapping({"low": 3}, "URL")], {})


# -- what is accepted --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("io_threads", "16", 16),
        ("io_threads", 16, 16),
        ("ratio", "0.5", 0.5),
        ("ratio", 1, 1.0),
        ("direct", "true", True),
        ("direct", "False", False),
        ("direct", "1", True),
        ("direct", "0", False),
        ("direct", True, True),
        ("fsync", "full", "full"),
        ("region", "eu-1", "eu-1"),
        ("region", None, None),
        ("scratch", "/spill", Path("/spill")),
        ("scratch", Path("/spill"), Path("/spill")),
        ("scratch", None, None),
        ("path", "/with space/ü", Path("/with space/ü")),
        ("capacity_nbytes", "10GiB", 10 << 30),
        ("capacity_nbytes", 4096, 4096),
        ("capacity_nbytes", None, None),
        ("password", None, None),
    ],
)
def test_text_and_typed_values_become_the_options_type(name: str, value: object, expected: object) -> None:
    found = getattr(options_from({name: value}), name)

    assert found == expected
    assert type(found) is type(expected)


def test_a_path_expands_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/op")

    assert options_from({"path": "~/kv"}).path == Path("/home/op/kv")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (0, 0),
        (1048576, 1048576),
        ("0", 0),
        ("1048576", 1048576),
        ("1b", 1),
        ("1k", 1000),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("1ki", 1024),
        ("2M", 2_000_000),
        ("2MiB", 2 << 20),
        ("10 GB", 10_000_000_000),
        ("10GiB", 10 << 30),
        (" 3 TiB ", 3 << 40),
        ("1PB", 10**15),
        ("1PiB", 1 << 50),
        ("1.5g", 1_500_000_000),
        ("0.5KiB", 512),
        ("9007199254740993", 9007199254740993),
        ("1.0000000000000000001PiB", (1 << 50)),
        ("0.1PB", 10**14),
    ],
)
def test_sizes_are_exact(text: str | int, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "GiB",
        "-1",
        "-1GiB",
        "1,5GB",
        "1e9",
        "1 0",
        "10 gigs",
        "1..5",
        ".5k",
        "0x10",
        "1GiB\0",
        True,
        1.5,
        None,
        [],
        -1,
    ],
)
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        parse_nbytes(value)


def test_a_huge_number_is_no_crash() -> None:
    assert parse_nbytes("9" * 400 + ".5PiB") > 10**400
