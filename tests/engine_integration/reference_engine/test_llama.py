from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from hicache_storage.engine_integration.reference_engine.kv_pool import slots_of
from hicache_storage.engine_integration.reference_engine.llama import (
    LlamaStage,
    TensorSum,
    rope_inverse_frequencies,
    sum_of_one,
)
from hicache_storage.engine_integration.reference_engine.model_config import read_model_config
from hicache_storage.engine_integration.reference_engine.partition import part_of
from hicache_storage.engine_integration.reference_engine.random_model import RandomShape, write_random_model
from hicache_storage.engine_integration.reference_engine.weights import SafetensorsFolder, load_weights
from hicache_storage.errors import InvariantError
from hicache_storage.layout import Topology

PAGE_TOKENS = 4
TOKENS = [(7 * index + 3) % 251 for index in range(37)]


WHOLE = Topology()


def stage_of(
    folder: Path,
    topology: Topology = WHOLE,
    tp_rank: int = 0,
    pp_rank: int = 0,
    tensor_sum: TensorSum = sum_of_one,
) -> LlamaStage:
    config = read_model_config(folder)
    part = part_of(config, topology, tp_rank=tp_rank, pp_rank=pp_rank)
    return LlamaStage(config, part, load_weights(SafetensorsFolder(folder), config, part, torch.float32), tensor_sum)


def run_chunks(stages: list[LlamaStage], chunks: list[list[int]], page_ids: Tensor | None = None) -> Tensor:
    """Return the logits behind the last chunk, computed through *stages* one after the other."""
    num_pages = -(-sum(map(len, chunks)) // PAGE_TOKENS)
    page_ids = torch.arange(num_pages) if page_ids is None else page_ids
    pools = [stage.new_pool(int(page_ids.max()) + 1, PAGE_TOKENS) for stage in stages]
    slots = slots_of(page_ids, PAGE_TOKENS)
    start = 0
    for chunk in chunks:
        hidden = stages[0].embed(torch.tensor(chunk))
        start += len(chunk)
        for stage, pool in zip(stages, pools, strict=True):
            hidden = stage.run(hidden, pool, slots[:start])
    return stages[-1].logits(hidden)


class ThreadSum:
    """Adds up the tensors of ranks that are threads, in rank order; a missing rank breaks it after a minute."""

    def __init__(self, ranks: int) -> None:
        self._slots: list[Tensor] = [torch.empty(0)] * ranks
        self._barrier = threading.Barrier(ranks, timeout=60)

    def of_rank(self, rank: int) -> TensorSum:
        def add(tensor: Tensor) -> Tensor:
            self._slots[rank] = tensor
            self._barrier.wait()
            total = torch.stack(self._slots).sum(dim=0)
            self._barrier.wait()
            return total

        return add


def run_tensor_parallel(folder: Path, tp: int) -> list[Tensor]:
    """Return every rank's logits of TOKENS, the ranks being threads."""
    shared, results = ThreadSum(tp), [torch.empty(0)] * tp

    def work(rank: int) -> None:
        stage = stage_of(folder, Topology(tp=tp), tp_rank=rank, tensor_sum=shared.of_rank(rank))
        results[rank] = run_chunks([stage], [TOKENS])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(tp)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_logits_equal_those_of_transformers_on_the_real_model(real_model: Path) -> None:
    tokens = [1, 4093, 198, *range(1000, 1040)]

    ours = run_chunks([stage_of(real_model)], [tokens])

    with torch.inference_mode():
        theirs = LlamaForCausalLM.from_pretrained(real_model, dtype=torch.float32)(torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)
    assert ours.argmax() == theirs.argmax()


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_those_of_transformers_on_a_random_model(tmp_path: Path, tied: bool) -> None:
    write_random_model(tmp_path, RandomShape(tied_embeddings=tied, num_kv_heads=2), seed=11)

    ours = run_chunks([stage_of(tmp_path)], [TOKENS])

    with torch.inference_mode():
        theirs = LlamaForCausalLM.from_pretrained(tmp_path)(torch.tensor([TOKENS])).logits[0, -1]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_llama3_frequencies_equal_those_of_transformers(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    theirs = LlamaConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=1, rope_parameters=rope)
    theirs.architectures = ["LlamaForCausalLM"]
    theirs.save_pretrained(tmp_path)

    ours = rope_inverse_frequencies(read_model_config(tmp_path))

    model = LlamaForCausalLM(theirs)
    torch.testing.assert_close(ours, model.model.rotary_emb.inv_freq, rtol=1e-6, atol=0)


def test_the_same_call_twice_gives_the_same_bits(tiny_model: Path) -> None:
    stage = stage_of(tiny_model)

    first, second = run_chunks([stage], [TOKENS]), run_chunks([stage], [TOKENS])

    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["pp2", "pp3", "pp4", "pp2:1+3"])
def test_pipeline_stages_compute_the_same_bits_as_the_whole(tiny_model: Path, name: str) -> None:
    topology = Topology.parse(name)
    whole = run_chunks([stage_of(tiny_model)], [TOKENS[:20], TOKENS[20:]])

    stages = [stage_of(tiny_model, topology, pp_rank=rank) for rank in range(topology.pp)]
    split = run_chunks(stages, [TOKENS[:20], TOKENS[20:]])

    assert torch.equal(split, whole)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_shares_agree_with_the_whole(tiny_model: Path, tp: int) -> None:
    whole = run_chunks([stage_of(tiny_model)], [TOKENS])

    ranks = run_tensor_parallel(tiny_model, tp)

    for logits in ranks:
        torch.testing.assert_close(logits, whole, rtol=0, atol=1e-4)
        assert torch.equal(logits, ranks[0])


@pytest.mark.parametrize("cut", [1, 16, 36])
def test_a_prompt_in_two_chunks_agrees_with_one(tiny_model: Path, cut: int) -> None:
    stage = stage_of(tiny_model)

    one, two = run_chunks([stage], [TOKENS]), run_chunks([stage], [TOKENS[:cut], TOKENS[cut:]])

    torch.testing.assert_close(two, one, rtol=0, atol=1e-4)


def test_the_place_of_pages_in_the_pool_changes_no_bit(tiny_model: Path) -> None:
    stage = stage_of(tiny_model)
    scattered = torch.tensor([11, 3, 0, 7, 14, 2, 9, 1, 8, 5])

    in_order, elsewhere = run_chunks([stage], [TOKENS]), run_chunks([stage], [TOKENS], scattered)

    assert torch.equal(in_order, elsewhere)


def test_only_the_ends_of_the_pipeline_embed_and_have_logits(tiny_model: Path) -> None:
    topology = Topology(pp=2)

    with pytest.raises(InvariantError, match="first pipeline stage"):
        stage_of(tiny_model, topology, pp_rank=1).embed(torch.tensor([1]))
    with pytest.raises(InvariantError, match="last pipeline stage"):
        stage_of(tiny_model, topology, pp_rank=0).logits(torch.zeros(1, 128))
