from __future__ import annotations

import json
from pathlib import Path

import pytest

from hicache_storage import ConfigError, open_store
from hicache_storage.backends.tiered import TieredOptions, TieredStore, TierSpec
from hicache_storage.config import from_mapping
from hicache_storage.registry import resolve_store

TIERED = "hicache_storage.backends.tiered:TieredStore"


def test_stores_are_urls_or_objects_with_options_and_middleware(tmp_path: Path) -> None:
    upper = {"backend": "file", "path": str(tmp_path / "upper"), "middleware": {"metrics": True}}
    with open_store(
        TIERED, {"stores": [upper, f"file://{tmp_path}/lower"], "middleware": {"retry_attempts": 2}}
    ) as store:
        store.write("key", [b"body"])

        assert store.stat("key") is not None
        assert store.name == "tiered"
    assert (tmp_path / "upper" / "objects").is_dir()
    assert (tmp_path / "lower" / "objects").is_dir()


def test_stores_may_be_json_from_the_environment(tmp_path: Path) -> None:
    environ = {"HICACHE_TIERED_STORES": json.dumps([f"file://{tmp_path}"]), "HICACHE_TIERED_PROMOTE_MAX_NBYTES": "1MiB"}

    options = resolve_store(TIERED, {}, environ).options

    assert isinstance(options, TieredOptions)
    assert options.stores == (TierSpec(f"file://{tmp_path}", {}),)
    assert options.promote_max_nbytes == 1 << 20


@pytest.mark.parametrize("stores", [[], "", "[]", "[", {"backend": "file"}, 3, b"file", [3], [{"path": "/kv"}], [None]])
def test_what_is_no_list_of_stores_is_refused(stores: object) -> None:
    with pytest.raises(ConfigError, match="tiered option stores"):
        open_store(TIERED, {"stores": stores})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("promote", "second"),
        ("write", "none"),
        ("background_jobs", 0),
        ("background_threads", 65),
        ("background_threads", True),
        ("drain_s", -1),
        ("drain_s", "soon"),
        ("drain_s", None),
        ("promote_max_nbytes", "lots"),
    ],
)
def test_a_wrong_option_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        open_store(TIERED, {"stores": ["memory"], name: value})
    with pytest.raises(ConfigError, match=name):
        TieredOptions(stores=[TierSpec("memory", {})], **{name: value})  # type: ignore[arg-type]


def test_a_wrong_option_of_a_store_says_which_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"io_threads.*stores\[1\]"):
        open_store(TIERED, {"stores": ["memory", {"backend": "file", "path": str(tmp_path), "io_threads": 0}]})


def test_no_store_is_opened_if_another_is_configured_wrongly(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        open_store(TIERED, {"stores": [f"file://{tmp_path}/kv", "nosuch"]})

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "stores", [{"backend": "redis", "password": "geheim"}, [["geheim"]], '["geheim', ["redis://u:geheim@h#"]]
)
def test_a_wrong_list_of_stores_is_not_shown(stores: object) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(TIERED, {"stores": stores})

    assert "geheim" not in str(caught.value)


def test_values_of_a_stores_options_are_not_shown() -> None:
    stores = [{"backend": "redis", "password": "geheim"}, "redis://user:geheim@host", "memory"]

    [shown] = [
        s for s in resolve_store(TIERED, from_mapping({"stores": stores}, "test"), {}).settings if s.name == "stores"
    ]

    assert str(shown.value) == "(redis(password), redis, memory)"


def test_an_open_store_may_be_a_tier() -> None:
    inner = open_store("memory")

    with TieredStore(TieredOptions(stores=[inner])) as store:
        store.write("key", [b"body"])

        assert inner.stat("key") is not None
