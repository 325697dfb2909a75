"""Inside vLLM's environment: an engine that answers JSON lines on stdin with JSON lines on stdout.

    python -m tests.engines.vllm.served MODEL SETTINGS

The first line is written once the engine is up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import wait
from typing import TextIO, TypedDict

from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.lora.request import LoRARequest


class Order(TypedDict, total=False):
    """What stdin asks for: a word, or prompts."""

    settle: bool
    count: bool
    forget: bool
    reset: bool
    prompts: list[list[int]]
    max_tokens: int
    adapter: tuple[str, int, str] | None
    inputs: dict[str, str]


def answer(llm: LLM, order: Order) -> dict[str, object]:
    """Return the greedy continuation of a prompt, how many of its tokens were not computed, and how long it took."""
    if order.get("forget"):
        return {"forgotten": llm.reset_prefix_cache()}
    if order.get("reset"):
        return {"reset": llm.reset_prefix_cache(reset_connector=True)}
    if order.get("count"):
        return dict(get_kv_transfer_group()._counters.snapshot())
    if order.get("settle"):
        return {"settled": not wait(get_kv_transfer_group()._worker._saving, 60.0).not_done}
    parameters = SamplingParams(max_tokens=order["max_tokens"], temperature=0, ignore_eos=True)
    inputs = [{"prompt_token_ids": prompt, **order["inputs"]} for prompt in order["prompts"]]
    adapter = None if order["adapter"] is None else LoRARequest(*order["adapter"])
    started_s = time.monotonic()
    outputs = llm.generate(inputs, parameters, use_tqdm=False, lora_request=adapter)
    elapsed_s = time.monotonic() - started_s
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "cached": [output.num_cached_tokens or 0 for output in outputs],
        "elapsed_s": elapsed_s,
    }


def main(model: str, settings: str, replies: TextIO) -> None:
    """Serve until stdin ends, then shut down as an engine does that is told to stop."""
    llm = LLM(model=model, enforce_eager=True, disable_log_stats=True, **json.loads(settings))
    if llm.llm_engine.vllm_config.parallel_config.pipeline_parallel_size > 1:
        # vLLM 0.32 makes the memory in which a stage takes over the one before in a dummy run, and has none on a CPU.
        llm.collective_rpc("execute_dummy_batch")
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(llm, json.loads(line))), file=replies, flush=True)
    llm.llm_engine.engine_core.shutdown()
    print(json.dumps({"ended": True}), file=replies, flush=True)


if __name__ == "__main__":
    # vLLM and its libraries write to stdout what they like.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(sys.argv[1], sys.argv[2], channel)
