"""What is refused when SGLang attaches the backend, what the refusal says, and that the documented command is not refused."""

from __future__ import annotations

import argparse
import logging
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.server_args import ServerArgs

from hicache_storage.engine_integration.adapters.sglang import HiCacheUnified, engine
from hicache_storage.engine_integration.adapters.sglang.options import AdapterOptions, read_options
from hicache_storage.errors import ConfigError, HiCacheError, LayoutError
from hicache_storage.layout import Topology
from tests.engines.sglang.adapter.deployment import FILE_STORE, LATENT, hashes_of, rank, ranks, storage_config
from tests.engines.sglang.adapter.host_pools import Shape, host_pool

ROOT = Path(__file__).parents[4]
PAGES = sorted((ROOT / "docs").glob("engines*.md"))
COMMAND = re.compile(r"^python -m sglang.launch_server (.*?)^```$", re.MULTILINE | re.DOTALL)
SHAPE = Shape(layers=2, heads=2, head_dim=16, page_tokens=4)


def made(folder: Path, **options: Any) -> HiCacheUnified:
    config = storage_config(backend=FILE_STORE, extra_config={"path": str(folder)}, **options)
    storage: HiCacheUnified = StorageBackendFactory.create_backend("dynamic", config, None)
    return storage


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head_partitions": 2}, ("head_partitions", "did you mean head_partition")),
        ({"file_storage_path": "/x"}, ("file_storage_path", "it has: backend, ")),
        ({"key_scheme": "suffix"}, ("key_scheme", "'suffix'", "unified or rank-suffix")),
        ({"head_partition": 0}, ("head_partition", "whole number from 1")),
        ({"key_scheme": "rank-suffix", "layer_partition": 2}, ("rank-suffix", "layer_partition")),
        ({"topologies": "4x2"}, ("topologies", "'4x2'", "tp<N>pp<M>")),
        ({"kv_dtype": "fp7"}, ("kv_dtype", "fp7")),
        ({"middleware": {"retries": 3}}, ("retries",)),
        ({"extra_config": [1]}, ("extra_config", "expected an object")),
        ({"backend": "nowhere"}, ("nowhere",)),
    ],
)
def test_wrong_option_is_named_with_what_would_be_right(
    options: dict[str, object], words: tuple[str, ...], tmp_path: Path
) -> None:
    given: dict[str, Any] = {"backend": FILE_STORE, "extra_config": {"path": str(tmp_path)}, **options}

    with pytest.raises(ConfigError) as refused:
        StorageBackendFactory.create_backend("dynamic", storage_config(**given), None)

    assert [word for word in words if word not in str(refused.value)] == []


def test_backend_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="option backend is required"):
        HiCacheUnified(storage_config(), {})


def test_keys_of_the_engine_are_its_own(tmp_path: Path) -> None:
    made(tmp_path, tp_lcm_size=8, prefetch_threshold=1, allocator="shm").close()


@pytest.mark.parametrize("name", ["topologies", "fleet"])
def test_deployments_that_share_are_named_as_the_vllm_adapter_names_them(name: str) -> None:
    assert read_options({"backend": "file", name: "tp4,tp2"}).topologies == (Topology(4), Topology(2))


@pytest.mark.parametrize("field", ["attn_cp_size", "dcp_size"])
def test_context_parallel_shards_are_refused(field: str, tmp_path: Path) -> None:
    config = storage_config(backend=FILE_STORE, extra_config={"path": str(tmp_path)}, is_mla=True)
    setattr(config, field, 2)

    with pytest.raises(LayoutError, match=r"CP.* of size 2"):
        HiCacheUnified(config, {})


@pytest.mark.parametrize("scheme", ["unified", "rank-suffix"])
def test_pool_without_memory_is_refused(scheme: str, tmp_path: Path) -> None:
    storage = made(tmp_path, key_scheme=scheme)
    pool = LogicalHostPool(size=64, page_size=4)

    with pytest.raises(LayoutError, match="LogicalHostPool"):
        storage.register_mem_pool_host(pool)
    storage.close()


def test_subclass_of_a_known_pool_is_refused_under_unified_keys(tmp_path: Path) -> None:
    class WithScales(MLATokenToKVPoolHost):  # type: ignore[misc] # SGLang has no types
        pass

    pool = host_pool(Shape(layers=2, heads=0, head_dim=48, page_tokens=4), "page_first")
    pool.__class__ = WithScales
    storage = made(tmp_path)

    with pytest.raises(LayoutError, match=r"WithScales.*rank-suffix"):
        storage.register_mem_pool_host(pool)
    storage.close()


@pytest.mark.parametrize("name", ["swa", "mamba"])
def test_hybrid_model_on_several_stages_is_refused_under_unified_keys(name: str, tmp_path: Path) -> None:
    only = rank("pp2", (0, 0), "page_first", tmp_path, num_layers=4)

    with pytest.raises(LayoutError, match=r"pipeline stages.*rank-suffix"):
        only.storage.register_mem_host_pool_v2(host_pool(SHAPE, "page_first"), name)
    only.storage.close()


def test_draft_with_heads_beside_latent_rows_is_refused_on_several_ranks(tmp_path: Path) -> None:
    only = rank("tp2", (1, 0), "page_first", tmp_path, LATENT)

    with pytest.raises(LayoutError, match="TP rank 0 alone write the draft pool"):
        only.storage.register_mem_host_pool_v2(host_pool(SHAPE, "page_first"), "draft")
    only.storage.close()


def test_refusals_are_of_one_family() -> None:
    assert issubclass(ConfigError, HiCacheError)
    assert issubclass(LayoutError, HiCacheError)


def test_engine_of_another_version_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine.check_engine("0.6.0")

    assert "found=0.6.0 tested=0.5.23" in caplog.text


def test_engine_with_another_interface_is_refused_by_all_that_differs() -> None:
    class Other:
        def batch_exists(self, keys: list[str]) -> int:
            return len(keys)

    with mock.patch.object(engine, "HiCacheStorage", Other), pytest.raises(ImportError) as refused:
        engine.check_engine("0.6.0")

    assert "made for sglang 0.5.23" in str(refused.value)
    assert "batch_exists takes ['keys'], not ['keys', 'extra_info']" in str(refused.value)
    assert "batch_get_v1" in str(refused.value)


def test_two_models_of_one_name_do_not_mix(tmp_path: Path) -> None:
    with ranks("tp1", "page_first", tmp_path) as (narrow,):
        narrow.fill(3)
        assert all(narrow.write(hashes_of(3)))

        other = replace(narrow.shape, head_dim=32)
        with ranks("tp1", "page_first", tmp_path, other) as (wide,):
            assert wide.storage.batch_exists(hashes_of(3)) == 0
            assert not any(wide.read(hashes_of(3)))

        assert narrow.read(hashes_of(3)) == [True] * 3


@pytest.mark.parametrize("page", ["README.md", "docs/engines-sglang.md"])
def test_documented_command_line_is_understood(page: str) -> None:
    (words,) = COMMAND.findall((ROOT / page).read_text())
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)

    given = parser.parse_args(shlex.split(words.replace("\\\n", " ")))
    extra, *_ = HybridCacheController.parse_storage_backend_extra_config(given.hicache_storage_backend_extra_config)

    assert given.hicache_storage_backend == "dynamic"
    assert read_options(extra).backend == "file:///mnt/kv"


def test_every_option_is_documented() -> None:
    text = "".join(page.read_text() for page in PAGES)

    assert [name for name in AdapterOptions.__dataclass_fields__ if f"`{name}`" not in text] == []
