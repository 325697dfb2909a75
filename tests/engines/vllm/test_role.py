"""All processes of a deployment come to one namespace and grid, and each shard has one writer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_storage.engine_integration.adapters.vllm.fingerprint import fingerprint
from hicache_storage.engine_integration.adapters.vllm.options import VllmOptions, read_options
from hicache_storage.engine_integration.adapters.vllm.role import Deployment, Role, role_of
from hicache_storage.errors import ConfigError
from hicache_storage.layout import KVShape, Topology, Variant, plan_reads, plan_writes
from hicache_storage.middleware import MetricsLayer
from hicache_storage.testing.memory import MemoryStore

MHA = KVShape.mha(num_layers=60, num_kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=16)
MLA = KVShape.mla(num_layers=60, latent_dim=576, dtype="bfloat16", page_tokens=16)


def roles(shape: KVShape, topology: str, options: VllmOptions | None = None) -> list[Role]:
    """Return the roles of all workers."""
    parsed = Topology.parse(topology)
    return [
        role_of(
            Deployment(model_id="m", variant=Variant(), shape=shape, topology=parsed, tp_rank=tp, pp_rank=pp),
            options or VllmOptions(),
        )
        for tp, pp in parsed.ranks()
    ]


@pytest.mark.parametrize("topology", ["tp1", "tp2", "tp8", "tp16", "pp2", "tp2pp3", "pp2:31+29"])
@pytest.mark.parametrize("shape", [MHA, MLA], ids=["mha", "mla"])
def test_workers_store_exactly_what_the_scheduler_asks_for(shape: KVShape, topology: str) -> None:
    workers = roles(shape, topology)

    written = [plan.chunk.suffix for role in workers if role.writes for plan in plan_writes(role.layout)]
    asked = [plan.chunk.suffix for plan in plan_reads(workers[0].whole)]

    assert sorted(written) == sorted(asked)
    assert len({role.namespace.digest for role in workers}) == 1


@pytest.mark.parametrize("shape", [MHA, MLA], ids=["mha", "mla"])
def test_deployments_that_name_each_other_share_a_namespace(shape: KVShape) -> None:
    one = roles(shape, "tp4pp2", read_options({"fleet": "tp2,tp8pp3"}))[0]
    other = roles(shape, "tp8pp3", read_options({"fleet": "tp2,tp4pp2"}))[0]

    assert one.namespace == other.namespace


def test_deployment_off_the_configured_grid_reads_only() -> None:
    workers = roles(MHA, "tp8", read_options({"head_partition": 2}))

    assert not any(role.writes for role in workers)


def test_page_may_be_several_blocks() -> None:
    assert roles(MHA, "tp1", read_options({"page_tokens": 64}))[0].whole.shape.page_tokens == 64


def test_page_that_is_no_whole_number_of_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="page_tokens = 40 is no multiple of vLLM's block of 16"):
        roles(MHA, "tp1", read_options({"page_tokens": 40}))


def test_read_only_deployment_writes_nothing() -> None:
    assert not roles(MHA, "tp1", read_options({"read_only": True}))[0].writes


def test_model_may_be_renamed() -> None:
    assert roles(MHA, "tp1", read_options({"model_id": "org/model"}))[0].namespace.model_id == "org/model"


@pytest.mark.parametrize("variant", [Variant(weights_revision="2"), Variant(rope_scaling="{}")])
def test_variant_keeps_namespaces_apart(variant: Variant) -> None:
    deployment = Deployment(model_id="m", variant=Variant(), shape=MHA, topology=Topology(), tp_rank=0, pp_rank=0)

    digests = {
        role_of(one, VllmOptions()).namespace.digest for one in (deployment, replace(deployment, variant=variant))
    }

    assert len(digests) == 2


def test_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"kv-transfer-config.*no option 'head_partitions'.*head_partition"):
        read_options({"head_partitions": 2})


@pytest.mark.parametrize(
    ("name", "value"), [("page_tokens", 0), ("fleet", "tpx"), ("extra_config", 3), ("staging_nbytes", "much")]
)
def test_value_that_does_not_fit_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        read_options({name: value})


def test_store_is_opened_with_its_own_options() -> None:
    with read_options({"backend": "memory"}).open_store() as store:
        assert isinstance(store, MemoryStore)


def test_wrong_option_of_the_store_names_its_place() -> None:
    with pytest.raises(ConfigError, match=r"kv_connector_extra_config\.extra_config"):
        read_options({"backend": "memory", "extra_config": {"bogus": 1}}).open_store()


@pytest.mark.parametrize("given", ["tp4,tp2", ["tp4", "tp2"]])
@pytest.mark.parametrize("name", ["fleet", "topologies"])
def test_fleet_is_understood_as_the_sglang_adapter_writes_it(name: str, given: object) -> None:
    assert read_options({name: given}).fleet == (Topology(4), Topology(2))


@pytest.mark.parametrize("given", [3, ["tp4", 2], "tp4;tp2"])
def test_fleet_that_cannot_be_read_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"fleet = .*tp4pp2"):
        read_options({"fleet": given})


@pytest.mark.parametrize(
    "given",
    [{"middleware": {"metrics": True}}, {"extra_config": {"middleware": {"metrics": True}}}],
    ids=["beside", "inside"],
)
def test_layers_of_the_store_stand_beside_its_options_or_among_them(given: dict[str, object]) -> None:
    with read_options({"backend": "memory", **given}).open_store() as store:
        assert isinstance(store, MetricsLayer)


def test_layers_of_the_store_join_the_options_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND", "file")
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND_EXTRA_CONFIG", json.dumps({"path": str(tmp_path / "kv")}))

    with read_options({"middleware": {"metrics": True}}).open_store() as store:
        assert isinstance(store, MetricsLayer)
        store.write("k", [b"body"])

    assert (tmp_path / "kv").is_dir()


def test_layers_of_the_store_are_not_given_twice() -> None:
    options = read_options({"backend": "memory", "middleware": {}, "extra_config": {"middleware.metrics": True}})

    with pytest.raises(ConfigError, match="middleware is given twice"):
        options.open_store()


def test_wrong_option_of_a_layer_names_it() -> None:
    with pytest.raises(ConfigError, match="middleware has no option 'dead_line'"):
        read_options({"backend": "memory", "middleware": {"dead_line": 2}}).open_store()


@pytest.mark.parametrize(
    ("given", "step_pages", "pages"),
    [(None, 10, 32), (None, 100, 100), (None, 100_000, 2048), ("8MiB", 10, 4), (1, 10, 1)],
)
def test_staging_holds_what_a_step_computes(given: object, step_pages: int, pages: int) -> None:
    options = read_options({} if given is None else {"staging_nbytes": given})

    assert options.staging_pages(1 << 20, step_pages) == pages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"rope_theta": 1}')
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 20_000)
    return tmp_path


def test_fingerprint_does_not_depend_on_the_place(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())

    assert fingerprint(folder) == fingerprint(other) is not None


@pytest.mark.parametrize("changed", [slice(0, 1), slice(-1, None), slice(None)], ids=["first", "last", "all"])
def test_other_weights_have_another_fingerprint(folder: Path, changed: slice) -> None:
    before = fingerprint(folder)
    weights = folder / "model.safetensors"
    body = bytearray(weights.read_bytes())
    body[changed] = bytes(byte ^ 1 for byte in body[changed])
    weights.write_bytes(bytes(body))

    assert fingerprint(folder) != before


def test_other_settings_have_another_fingerprint(folder: Path) -> None:
    before = fingerprint(folder)
    (folder / "config.json").write_text('{"rope_theta": 2}')

    assert fingerprint(folder) != before


def test_folder_without_weights_has_none(tmp_path: Path) -> None:
    assert fingerprint(tmp_path) is None
