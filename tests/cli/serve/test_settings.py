"""From flags to what an engine is started with."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from hicache_storage.cli.serve.arguments import Settings, add_arguments, read_settings
from hicache_storage.cli.serve.setup import Setup, prepare
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.model import kv_dtype
from hicache_storage.errors import ConfigError, HiCacheError
from hicache_storage.layout import ITEM_NBYTES
from tests.cli.serve.toy_folder import write_toy_folder

ARTICLE = """--enable-hierarchical-cache --hicache-storage-backend file --hicache-storage-key-scheme unified
--hicache-storage-head-partition 2 --hicache-storage-layer-partition 30"""
HIERARCHY = "--enable-hierarchical-cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of the article's model: 60 layers and 8 KV heads."""
    return write_toy_folder(tmp_path / "toy")


@pytest.fixture
def told() -> list[str]:
    """What was said while a server was prepared."""
    return []


def settings(*flags: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_settings(parser.parse_args([word for flag in flags for word in flag.split()]))


def prepared(told: list[str], model: Path, *flags: str) -> Setup:
    return prepare(settings(f"--model-path {model}", *flags), told.append)


def test_line_of_the_article_is_taken_as_it_stands(told: list[str], model: Path) -> None:
    engine = prepared(told, model, ARTICLE, "--tp-size 4 --pp-size 2").engine

    assert (engine.layer_partition, engine.head_partition, engine.key_scheme) == (30, 2, "unified")
    assert (engine.cache, engine.topology) == ("host", "tp4pp2")
    assert engine.store is not None
    assert engine.store.backend == "file"
    assert "keys: unified, so host pages are page_unified and the I/O backend is kernel" in told
    assert not any("warning" in line for line in told)


def test_every_topology_of_the_article_shares_its_grid(told: list[str], model: Path) -> None:
    for topology in ("--tp-size 4 --pp-size 2", "--tp-size 2", "", "--tp-size 4"):
        engine = prepared(told, model, ARTICLE, topology).engine
        assert (engine.layer_partition, engine.head_partition) == (30, 2)


def test_partitions_that_are_not_given_are_chosen_and_what_they_exclude_is_said(told: list[str], model: Path) -> None:
    engine = prepared(told, model, HIERARCHY, "--tp-size 4 --pp-size 2").engine

    assert (engine.layer_partition, engine.head_partition) == (30, 2)
    warning = next(line for line in told if line.startswith("warning: "))
    for words in (
        "--hicache-storage-layer-partition and --hicache-storage-head-partition not given",
        "30 layers x 2 KV heads",
        "more pipeline stages or TP ranks could then only read",
        "hicache plan",
    ):
        assert words in warning


def test_one_partition_that_is_not_given_is_named_alone(told: list[str], model: Path) -> None:
    engine = prepared(told, model, HIERARCHY, "--hicache-storage-head-partition 1").engine

    assert (engine.layer_partition, engine.head_partition) == (60, 1)
    assert any(line.startswith("warning: --hicache-storage-layer-partition not given") for line in told)


def test_grid_that_this_topology_cannot_write_is_refused_unless_it_only_reads(told: list[str], model: Path) -> None:
    finer = (ARTICLE, "--pp-size 4")

    with pytest.raises(ConfigError, match=r"tp1pp4 cannot write objects of 30 layers x 2 KV heads.*read-only"):
        prepared(told, model, *finer)
    engine = prepared(told, model, *finer, "--hicache-storage-read-only").engine

    assert (engine.writes_store, engine.layer_partition) == (False, 30)


def test_rank_suffix_stores_whole_pages_of_each_rank(told: list[str], model: Path) -> None:
    engine = prepared(told, model, HIERARCHY, "--hicache-storage-key-scheme rank-suffix --tp-size 2").engine

    assert (engine.key_scheme, engine.layer_partition, engine.head_partition) == ("rank-suffix", None, None)
    assert "keys: rank-suffix, so tp2pp1 shares with tp2pp1 alone" in told


@pytest.mark.parametrize(
    ("flags", "both"),
    [
        (f"{ARTICLE} --hicache-mem-layout page_first", ("--hicache-mem-layout page_first", "unified")),
        (f"{ARTICLE} --hicache-io-backend direct", ("--hicache-io-backend direct", "unified")),
        (
            f"{HIERARCHY} --hicache-storage-key-scheme rank-suffix --hicache-mem-layout layer_first",
            ("--hicache-mem-layout layer_first", "rank-suffix"),
        ),
        (
            f"{HIERARCHY} --hicache-storage-key-scheme rank-suffix --hicache-storage-head-partition 2",
            ("--hicache-storage-head-partition", "rank-suffix"),
        ),
        (f"{HIERARCHY} --hicache-size 1GB --hicache-ratio 2", ("--hicache-size", "--hicache-ratio")),
        ("--hicache-storage-backend file", ("--hicache-storage-backend", HIERARCHY)),
        ("--hicache-write-policy write_back", ("--hicache-write-policy", HIERARCHY)),
        ("--hicache-ratio 2", ("--hicache-ratio", HIERARCHY)),
        ("--hicache-storage-layer-partition 30", ("--hicache-storage-layer-partition", HIERARCHY)),
        ("--hicache-mem-layout page_unified", ("--hicache-mem-layout", HIERARCHY)),
        (f"{HIERARCHY} --disable-radix-cache", ("--disable-radix-cache", HIERARCHY)),
        (
            f"{HIERARCHY} --hicache-storage-backend-extra-config {{}}",
            ("--hicache-storage-backend-extra-config", "--hicache-storage-backend"),
        ),
    ],
)
def test_flags_that_contradict_each_other_are_both_named(flags: str, both: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(flags)

    assert all(name in str(refused.value) for name in both), str(refused.value)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--port 65536", "from 0 to 65535"),
        ("--tp-size 0", "from 1 to"),
        ("--dtype int8", "float32 or bfloat16"),
        ("--kv-cache-dtype int8", "expected auto, float32, bfloat16, fp8_e4m3 or fp8_e5m2"),
        ("--kv-cache-dtype int3", "expected auto, float32"),
        ("--device tpu", "'cpu' or 'cuda'"),
        (f"{HIERARCHY} --hicache-write-policy never", "write_through"),
        (f"{HIERARCHY} --hicache-size 30", "30GB is what SGLang means"),
        ("--log-level loud", "'debug'"),
        ("--admin-token=", "a token that is not empty"),
    ],
)
def test_value_that_does_not_fit_says_what_would(flags: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        settings(flags)


@pytest.mark.parametrize("dtype", ITEM_NBYTES)
def test_kv_dtype_is_taken_if_the_engine_keeps_kv_in_it(told: list[str], model: Path, dtype: str) -> None:
    engine = EngineConfig(model_id="toy", model=str(model), kv_dtype=dtype)

    taken = works(lambda: prepared(told, model, f"--kv-cache-dtype {dtype}"))

    assert taken == works(lambda: kv_dtype(engine))


def works(step: Callable[[], object]) -> bool:
    """Return whether *step* is carried out, and not refused."""
    try:
        step()
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--tp-size 3", "tp3"),
        ("--pp-size 61", "pp61"),
        ("--context-length 513", "takes 512"),
        ("--max-total-tokens 8", "--page-size 16"),
        (f"{HIERARCHY} --hicache-storage-backend nowhere", "no storage backend 'nowhere'"),
        (f"{ARTICLE} --hicache-storage-head-partition 3", "3"),
    ],
)
def test_what_the_model_cannot_do_is_refused_before_an_engine_starts(
    told: list[str], model: Path, flags: str, reason: str
) -> None:
    with pytest.raises(HiCacheError, match=reason):
        prepared(told, model, flags)


def test_every_tier_option_is_a_flag_under_both_of_its_names() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}

    for field in fields(TierOptions):
        for name in (field.name, *field.metadata["aliases"]):
            assert f"--{name.replace('_', '-')}" in flags


def test_tier_options_within_the_extra_config_are_the_tiers_as_sglang_has_them(tmp_path: Path) -> None:
    extra = json.dumps({"path": str(tmp_path), "prefetch_threshold": 32, "prefetch_timeout_base": 2})

    read = settings(
        HIERARCHY, "--hicache-storage-backend file", f"--hicache-storage-backend-extra-config={extra.replace(' ', '')}"
    )

    assert (read.tiers.prefetch_threshold_tokens, read.tiers.prefetch_timeout_base_s) == (32, 2.0)
    assert read.store is not None
    assert json.loads(read.store.extra_config or "") == {"path": str(tmp_path)}


def test_sizes_and_policies_reach_the_tiers() -> None:
    tiers = settings(
        HIERARCHY, "--hicache-size 2GiB --hicache-write-policy write_back --hicache-storage-prefetch-policy best_effort"
    ).tiers

    assert (tiers.host_nbytes, tiers.write_policy, tiers.prefetch_policy) == (2 << 30, "write_back", "best_effort")


def test_engine_gets_what_the_flags_say(told: list[str], model: Path) -> None:
    flags = (
        "--page-size 8 --max-total-tokens 100 --chunked-prefill-size 64 --max-running-requests 3 "
        "--dtype bf16 --kv-cache-dtype fp8_e4m3"
    )
    engine = prepared(told, model, flags).engine

    assert (engine.page_tokens, engine.device_pages, engine.chunk_tokens, engine.max_running) == (8, 12, 64, 3)
    assert (engine.dtype, engine.kv_dtype, engine.cache) == ("bfloat16", "float8_e4m3fn", "device")
    assert prepared(told, model, "--disable-radix-cache").engine.cache == "off"


def test_context_is_no_longer_than_model_flag_and_device_pool(told: list[str], model: Path) -> None:
    lengths = [
        prepared(told, model, flags).model.context_tokens
        for flags in ("", "--context-length 100", "--max-total-tokens 90 --page-size 16")
    ]

    assert lengths == [512, 100, 80]


def test_model_is_called_by_its_folder_or_as_told(told: list[str], model: Path) -> None:
    assert prepared(told, model).model.name == "toy"
    served = prepared(told, model, "--served-model-name mine").model
    assert (served.name, served.aliases) == ("mine", (str(model),))


def test_environment_has_what_no_flag_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_ADMIN_TOKEN", "t0ken")
    monkeypatch.setenv("HICACHE_SERVE_PORT", "1234")

    serve = settings("--host 0.0.0.0").serve

    assert serve.admin_token is not None
    assert (serve.admin_token.reveal(), serve.port) == ("t0ken", 1234)
    assert "t0ken" not in repr(serve)
    assert settings("--port 5").serve.port == 5


def test_server_uses_the_store_that_the_environment_names_for_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND", "redis")
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND_EXTRA_CONFIG", '{"url": "redis://kv:6379"}')

    store = settings(HIERARCHY).store

    assert store is not None
    assert (store.backend, json.loads(store.extra_config or "")) == ("redis", {"url": "redis://kv:6379"})


def test_store_of_a_flag_wins_over_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND", "redis")

    stores = [settings(HIERARCHY, f"--{flag} file:///kv").store for flag in ("hicache-storage-backend", "store")]

    assert [store and store.backend for store in stores] == ["file:///kv", "file:///kv"]


def test_store_of_the_environment_is_left_alone_without_a_host_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND", "redis")
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND_EXTRA_CONFIG", "{}")

    assert settings().store is None


def test_options_in_the_environment_alone_name_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND_EXTRA_CONFIG", '{"path": "/kv"}')

    assert settings(HIERARCHY).store is None


@pytest.mark.parametrize("config", ['{"url": "redis://kv:6379"}', '{"hicache_size": "much"}', "{"])
def test_options_in_the_environment_that_do_not_fit_are_said_to_be_from_there(
    monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND_EXTRA_CONFIG", config)

    with pytest.raises(ConfigError, match="environment variable HICACHE_STORAGE_BACKEND_EXTRA_CONFIG"):
        settings(f"{HIERARCHY} --store file:///kv")


def test_store_in_the_server_s_own_variable_needs_a_host_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_SERVE_HICACHE_STORAGE_BACKEND", "redis")

    with pytest.raises(ConfigError, match=f"HICACHE_SERVE_HICACHE_STORAGE_BACKEND without {HIERARCHY}"):
        settings()


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("HICACHE_SERVE_PROT", "serve has no option 'prot' .*HICACHE_SERVE_PROT.*did you mean port"),
        ("HICACHE_SERVE_MODEL", "HICACHE_SERVE_MODEL.*did you mean model_path"),
        ("HICACHE_TIER_WRITE_POLCY", "HICACHE_TIER_WRITE_POLCY.*did you mean write_policy"),
    ],
)
def test_mistyped_variable_is_refused_and_the_right_one_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, says: str
) -> None:
    monkeypatch.setenv(variable, "1")

    with pytest.raises(ConfigError, match=says):
        settings()


def test_variables_of_others_are_none_of_the_server_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HICACHE_TIERED_PROMOTE", "HICACHE_SERVER_X", "HICACHE_ADMIN_TOKEN", "HICACHE_RANK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HICACHE_SERVE_PROT", "")

    assert settings().serve.port == 30000


def test_ranks_log_from_info_on_or_what_the_flag_says(told: list[str], model: Path) -> None:
    levels = [prepared(told, model, flags).engine.log_level for flags in ("", "--log-level error", "--log-level debug")]

    assert levels == ["info", "error", "debug"]
