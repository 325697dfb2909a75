"""Inside vLLM's environment: prints what the connector says to configurations, as JSON.

python -m tests.engines.vllm.refusals MODEL STORE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import torch
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

from hicache_storage.engine_integration.adapters.vllm import deployment
from hicache_storage.engine_integration.adapters.vllm.connector import HiCacheConnector, StepMetadata, StepReport
from hicache_storage.engine_integration.adapters.vllm.release import check_release
from hicache_storage.engine_integration.adapters.vllm.work import StepWork
from hicache_storage.engine_integration.page_store import PageStore
from hicache_storage.errors import ConfigError
from tests.engines.vllm.serving import connector

_ATTENTION = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}


def said(call: Callable[[], object]) -> str:
    """Return the error's text, or what the call returns."""
    try:
        return str(call())
    except ConfigError as error:
        return str(error)


def configured(
    policy: str = "recompute", method: str | None = None, role: str = "kv_both", **sizes: int
) -> SimpleNamespace:
    parallel = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1} | sizes
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel),
        speculative_config=None if method is None else SimpleNamespace(method=method),
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy, kv_role=role),
    )


def groups(*specs: object) -> SimpleNamespace:
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def without_a_method() -> object:
    with mock.patch.object(KVConnectorBase_V1, "get_num_new_matched_tokens", new=None):
        return check_release()


def name_of(made: object) -> object:
    return type(made).__name__


def started(
    model: str,
    options: dict[str, object],
    ask: Callable[[HiCacheConnector], object] = name_of,
    **said_otherwise: object,
) -> object:
    """Return what the connector's half in the scheduler, made as vLLM makes it, says to *ask*."""
    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        block_size=32,
        max_model_len=256,
        dtype="float32",
        kv_transfer_config=connector(options) | said_otherwise,
    ).create_engine_config()
    spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32)
    names = [f"model.layers.{layer}.self_attn.attn" for layer in range(4)]
    kv = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, spec)])
    made = KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, kv)
    try:
        return ask(made)
    finally:
        made.shutdown()


def reset(model: str, options: dict[str, object]) -> object:
    """Return whether a reset succeeds, and whether it deletes what is stored."""
    with mock.patch.object(PageStore, "clear") as clear:
        return started(model, options, lambda made: made.reset_cache()), clear.called


def model_that(*, is_diffusion: bool = False, is_prefix_caching_supported: bool = True) -> None:
    model = SimpleNamespace(is_diffusion=is_diffusion, is_prefix_caching_supported=is_prefix_caching_supported)
    deployment._check_model(model)


def position(max_model_len: int, rope_type: str = "longrope") -> str | None:
    rope = {"rope_type": rope_type, "original_max_position_embeddings": 4096}
    text = SimpleNamespace(rope_parameters=rope)
    return deployment._positions(SimpleNamespace(hf_overrides={}, hf_text_config=text, max_model_len=max_model_len))


def together() -> object:
    """Return what two workers' reports of a step become."""
    report = StepReport({"a": 3}, 7).aggregate(StepReport({"a": 1, "b": 2}, 7))
    return sorted(report.postponed.items()), report.step


def told_later() -> object:
    """Return what a worker reports, and again, if vLLM takes the report of one step behind the next."""
    postponed = iter([{"a": 3, "b": 2}, {"a": 1}, {}])
    worker = HiCacheConnector.__new__(HiCacheConnector)
    worker._postponed, worker._step_over = {}, None
    worker._worker = mock.Mock(submit_saves=lambda _: next(postponed))
    for work in (StepWork(number=7), StepWork(), StepWork(idle=True)):
        worker.bind_connector_metadata(StepMetadata(work))
        worker.wait_for_save()
    first, second = worker.build_connector_worker_meta(), worker.build_connector_worker_meta()
    assert first is not None
    return sorted(first.postponed.items()), first.step, second


def main(model: str, store: str) -> None:
    """Print name -> text."""
    full, sliding = FullAttentionSpec(**_ATTENTION), SlidingWindowSpec(**_ATTENTION, sliding_window=128)
    here: dict[str, object] = {"backend": store}
    calls: dict[str, Callable[[], object]] = {
        "release": check_release,
        "missing": without_a_method,
        "served": lambda: deployment._check_parallel(configured(method="ngram")),
        "dcp": lambda: deployment._check_parallel(configured(decode_context_parallel_size=2)),
        "draft": lambda: deployment._check_parallel(configured(method="eagle")),
        "diffusion": lambda: model_that(is_diffusion=True),
        "pooling": lambda: model_that(is_prefix_caching_supported=False),
        "decoder": model_that,
        "one_group": lambda: type(deployment._only_spec(groups(full))).__name__,
        "groups": lambda: deployment._only_spec(groups(full, sliding)),
        "sliding": lambda: deployment._only_spec(groups(sliding)),
        "started": lambda: started(model, here),
        "policy": lambda: started(model, here, kv_load_failure_policy="fail"),
        "role": lambda: started(model, here, kv_role="kv_consumer"),
        "option": lambda: started(model, here | {"head_partitions": 2}),
        "store_option": lambda: started(model, here | {"extra_config": {"bogus": 1}}),
        "page": lambda: started(model, here | {"page_tokens": 48}),
        "early": lambda: HiCacheConnector.requires_piecewise_for_cudagraph({"head_partitions": 2}),
        "commit": lambda: deployment._commit("org/model", None),
        "branch": lambda: deployment._commit("org/model", "not-here"),
        "no_hub": lambda: deployment._commit("s3://bucket/a/model", None),
        "long": lambda: position(8192),
        "short": lambda: position(4096),
        "plain": lambda: position(8192, "yarn"),
        "reset": lambda: reset(model, here),
        "reader_reset": lambda: reset(model, here | {"read_only": True}),
        "report": together,
        "later": told_later,
    }
    print(json.dumps({name: said(call) for name, call in calls.items()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
