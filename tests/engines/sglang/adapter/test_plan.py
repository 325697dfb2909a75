"""What a deployment's objects are called and who writes them; what cannot be known is asked for by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sglang.srt.mem_cache.hicache_key_scheme import plan_unified_kv
from sglang.srt.server_args import ServerArgs

from hicache_storage.engine_integration.adapters.sglang import facts
from hicache_storage.engine_integration.adapters.sglang.facts import EngineModel, PoolFacts, RankFacts
from hicache_storage.engine_integration.adapters.sglang.options import read_options
from hicache_storage.engine_integration.adapters.sglang.plan import PartPlan, PartPlanner
from hicache_storage.errors import ConfigError, LayoutError
from hicache_storage.layout import Grid, page_hashes, plan_reads
from tests.engines.sglang.adapter.deployment import hashes_of

GOLDEN = json.loads((Path(__file__).parents[3] / "layout" / "golden" / "sglang_0.5.23.json").read_text())
POOL = PoolFacts(
    layout="page_first",
    dtype="bfloat16",
    page_tokens=64,
    num_pages=8,
    heads=2,
    head_dim=128,
    v_head_dim=128,
    start_layer=0,
    target_layers=60,
)
LATENT = replace(POOL, heads=0, head_dim=576, v_head_dim=0)


class SilentModel(EngineModel):
    """A model of which the engine says what it is told here."""

    def __init__(self, heads: int | None = None, layers: int | None = None, dtype: str | None = None) -> None:
        self._heads, self._layers, self._dtype = heads, layers, dtype

    def total_kv_heads(self) -> int | None:
        return self._heads

    def num_layers(self) -> int | None:
        return self._layers

    def kv_dtype(self) -> str | None:
        return self._dtype

    def draft_model(self) -> str | None:
        return None


def planner(rank: RankFacts | None = None, model: EngineModel | None = None, **options: Any) -> PartPlanner:
    read = read_options({"backend": "file", "interface_v1": 1, **options})
    return PartPlanner(rank or RankFacts(), read, model or SilentModel(), "meta-llama/Llama-3-70B")


def suffixes(part: PartPlan) -> list[str]:
    return [f"{part.namespace.digest}_{read.chunk.suffix}" for read in plan_reads(part.layout)]


@pytest.mark.parametrize(("tp", "heads"), [(4, 2), (2, 4), (1, 8)])
@pytest.mark.parametrize("pp", [1, 2])
def test_objects_are_called_as_by_sglangs_own_library(tp: int, heads: int, pp: int) -> None:
    for tp_rank in range(tp):
        for pp_rank in range(pp):
            rank = RankFacts(tp_rank=tp_rank, tp_size=tp, pp_rank=pp_rank, pp_size=pp)
            layers = 60 // pp
            pool = replace(POOL, heads=heads, start_layer=pp_rank * layers, target_layers=layers)
            theirs = plan_unified_kv(
                model_id="meta-llama/Llama-3-70B",
                dtype="bfloat16",
                page_size=64,
                rank_replicated=False,
                local_kv_heads=heads,
                attn_tp_rank=tp_rank,
                attn_tp_size=tp,
                attn_cp_size=1,
                start_layer=pool.start_layer,
                end_layer=pool.start_layer + layers,
                is_final_stage=pp_rank == pp - 1,
                head_group=2,
                layer_partition=30,
            )

            (part,) = planner(rank, layer_partition=30, head_partition=2, num_layers=60).anchor(pool)

            assert suffixes(part) == theirs.suffixes
            assert part.writes


def test_latent_rows_are_called_as_by_sglangs_own_library() -> None:
    theirs = plan_unified_kv(
        model_id="meta-llama/Llama-3-70B",
        dtype="bfloat16",
        page_size=64,
        rank_replicated=True,
        local_kv_heads=1,
        attn_tp_rank=0,
        attn_tp_size=8,
        attn_cp_size=1,
        start_layer=0,
        end_layer=60,
        is_final_stage=True,
        layer_partition=30,
    )
    rank = RankFacts(tp_size=8, is_replicated=True)

    (part,) = planner(rank, layer_partition=30).anchor(LATENT)

    assert suffixes(part) == theirs.suffixes


@pytest.mark.parametrize("case", GOLDEN["namespace"], ids=lambda case: case["digest"])
def test_golden_namespaces_hold(case: dict[str, Any]) -> None:
    heads, layers = int(case["total_kv_heads"]), int(case["layer_partition"])
    pool = replace(
        POOL if heads else LATENT,
        heads=heads,
        dtype=str(case["dtype"]),
        page_tokens=int(case["page_size"]),
        target_layers=layers,
    )
    grid = {"layer_partition": layers, **({"head_partition": case["head_group"]} if heads else {})}

    (part,) = planner(model_id=case["model_id"], **grid).anchor(pool)

    assert part.namespace.digest == case["digest"]


def test_page_hashes_are_our_own() -> None:
    assert hashes_of(7) == page_hashes(range(7 * 16), page_tokens=16)


def test_one_topology_list_gives_every_member_the_same_names() -> None:
    def of(tp: int, heads: int) -> set[str]:
        names = set()
        for tp_rank in range(tp):
            rank = RankFacts(tp_rank=tp_rank, tp_size=tp)
            (part,) = planner(rank, topologies="tp4,tp2,tp1pp2").anchor(replace(POOL, heads=heads))
            names |= set(suffixes(part))
        return names

    assert of(4, 2) == of(2, 4) == of(1, 8)


def test_latent_rows_are_cut_by_layers_alone() -> None:
    (part,) = planner(RankFacts(tp_size=8, is_replicated=True), topologies="tp4pp2,tp8").anchor(LATENT)

    assert part.layout.grid == Grid(30, 0)


def test_deployment_outside_its_own_list_of_topologies_is_refused_as_a_writer() -> None:
    with pytest.raises(LayoutError, match=r"heads \[0, 2\).*grid of 4"):
        planner(RankFacts(tp_size=4), topologies="tp2").anchor(POOL)


def test_ranks_that_share_a_head_elect_one_writer() -> None:
    ranks = [RankFacts(tp_rank=tp_rank, tp_size=16) for tp_rank in range(16)]

    parts = [planner(rank, total_kv_heads=8).anchor(replace(POOL, heads=1))[0] for rank in ranks]

    assert [part.writes for part in parts] == [True, False] * 8
    assert [part.layout.shard.heads.start for part in parts] == [rank // 2 for rank in range(16)]


def test_one_head_a_rank_is_asked_about() -> None:
    rank = RankFacts(tp_rank=1, tp_size=8)

    with pytest.raises(ConfigError, match=r"one KV head on each of 8 TP ranks.*set total_kv_heads"):
        planner(rank).anchor(replace(POOL, heads=1))


def test_one_head_a_rank_is_what_the_engines_model_says() -> None:
    rank = RankFacts(tp_rank=3, tp_size=8)

    (part,) = planner(rank, SilentModel(heads=4)).anchor(replace(POOL, heads=1))

    assert part.layout.shard.heads == range(1, 2)
    assert not part.writes


def test_engines_own_model_and_arguments_are_asked(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 6,
        "intermediate_size": 64,
        "vocab_size": 64,
        "max_position_embeddings": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ServerArgs(model_path=str(tmp_path), kv_cache_dtype="fp8_e5m2", speculative_draft_model_path="d")

    with mock.patch.object(facts, "get_server_args", return_value=arguments):
        model = EngineModel()
        answers = (model.total_kv_heads(), model.num_layers(), model.kv_dtype(), model.draft_model())

    assert answers == (2, 6, "fp8_e5m2", "d")


def test_engine_that_cannot_describe_its_model_says_nothing() -> None:
    with mock.patch.object(facts, "get_server_args", side_effect=ValueError("not set yet")):
        model = EngineModel()
        answers = (model.total_kv_heads(), model.num_layers(), model.kv_dtype(), model.draft_model())

    assert answers == (None, None, None, None)


def test_wrong_number_of_heads_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"16 KV heads has 4 on each of 4.*pool has 2"):
        planner(RankFacts(tp_size=4), total_kv_heads=16).anchor(POOL)


def test_stage_asks_how_many_layers_the_model_has() -> None:
    rank = RankFacts(pp_rank=0, pp_size=2)

    with pytest.raises(ConfigError, match="set num_layers"):
        planner(rank).anchor(replace(POOL, target_layers=30))


def test_stages_that_number_their_layers_from_nought_are_refused() -> None:
    rank = RankFacts(pp_rank=1, pp_size=2)

    with pytest.raises(LayoutError, match=r"stage 1 of 2.*starts at layer 0"):
        planner(rank, num_layers=60).anchor(replace(POOL, target_layers=30))


def test_last_stage_ends_where_the_model_does() -> None:
    rank = RankFacts(pp_rank=1, pp_size=2)

    with pytest.raises(LayoutError, match=r"\[30, 50\).*60"):
        planner(rank, num_layers=60).anchor(replace(POOL, start_layer=30, target_layers=20))


def test_uneven_stages_ask_for_the_grid() -> None:
    rank = RankFacts(pp_rank=0, pp_size=2)

    with pytest.raises(ConfigError, match=r"layers \[0, 31\).*layer_partition"):
        planner(rank, num_layers=60).anchor(replace(POOL, target_layers=31))


def test_writer_off_the_grid_is_refused_with_both_numbers() -> None:
    with pytest.raises(LayoutError, match=r"heads \[0, 2\).*grid of 4.*read_only"):
        planner(RankFacts(tp_size=4), layer_partition=60, head_partition=4).anchor(POOL)


def test_reader_off_the_grid_is_welcome() -> None:
    (part,) = planner(RankFacts(tp_size=4), layer_partition=60, head_partition=4, read_only=True).anchor(POOL)

    assert not part.writes


def test_rows_kept_as_bytes_ask_what_they_mean() -> None:
    with pytest.raises(ConfigError, match=r"kept as uint8|keeps its rows as uint8.*set kv_dtype"):
        planner().anchor(replace(POOL, dtype="uint8"))


@pytest.mark.parametrize(("option", "engine"), [("fp8_e5m2", None), (None, "fp8_e5m2"), ("fp8_e5m2", "fp8_e4m3")])
def test_rows_kept_as_bytes_are_called_what_they_mean(option: str | None, engine: str | None) -> None:
    options = {} if option is None else {"kv_dtype": option}

    (part,) = planner(None, SilentModel(dtype=engine), **options).anchor(replace(POOL, dtype="uint8"))

    assert part.namespace.dtype == "float8_e5m2"


def test_packed_draft_layers_are_a_component_of_their_own() -> None:
    target, draft = planner(draft_model_id="eagle").anchor(replace(POOL, draft_layers=2))

    assert (target.pool_layers, draft.pool_layers) == (range(60), range(60, 62))
    assert target.namespace == planner().anchor(POOL)[0].namespace
    assert draft.namespace.variant.component == "draft-packed"
    assert draft.namespace.model_id == "meta-llama/Llama-3-70B + eagle"


def test_rank_suffix_keeps_every_rank_to_itself() -> None:
    ranks = [RankFacts(tp_rank=t, tp_size=2, pp_rank=p, pp_size=2) for t in range(2) for p in range(2)]

    parts = [planner(rank, key_scheme="rank-suffix").anchor(replace(POOL, heads=1))[0] for rank in ranks]

    assert len({part.namespace.digest for part in parts}) == 4
    assert all(len(suffixes(part)) == 1 and part.writes for part in parts)


def test_rank_suffix_gives_ranks_with_the_same_latent_rows_one_name() -> None:
    ranks = [RankFacts(tp_rank=t, tp_size=4, is_replicated=True) for t in range(4)]

    parts = [planner(rank, key_scheme="rank-suffix").anchor(LATENT)[0] for rank in ranks]

    assert len({part.namespace.digest for part in parts}) == 1


def test_side_pool_of_many_heads_is_shared_across_topologies() -> None:
    def names(tp: int, heads: int) -> set[str]:
        planners = [planner(RankFacts(tp_rank=t, tp_size=tp), topologies="tp4,tp2") for t in range(tp)]
        return {name for one in planners for name in suffixes(one.companion("swa", replace(POOL, heads=heads)))}

    assert names(4, 2) == names(2, 4)


def test_side_pool_of_one_head_a_rank_is_private() -> None:
    planners = [planner(RankFacts(tp_rank=t, tp_size=4)) for t in range(4)]

    digests = {one.companion("swa", replace(POOL, heads=1)).namespace.digest for one in planners}

    assert len(digests) == 4


def test_every_field_that_changes_kv_changes_the_name() -> None:
    fields = ("weights_revision", "rope_scaling", "quantization_scales", "tokenizer", "multimodal", "model_id")

    digests = {planner(None, None, **{field: "x"}).anchor(POOL)[0].namespace.digest for field in fields}
    digests.add(planner().anchor(POOL)[0].namespace.digest)

    assert len(digests) == len(fields) + 1
