"""Inside vLLM's environment: prints what the connector says to configurations that it does not serve, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from hicache_storage.engine_integration.adapters.vllm import deployment
from hicache_storage.engine_integration.adapters.vllm.release import check_release
from hicache_storage.errors import ConfigError

_ATTENTION = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}


def said(call: Callable[[], object]) -> str:
    """Return the error's text, or what the call returns."""
    try:
        return str(call())
    except ConfigError as error:
        return str(error)


def configured(policy: str = "recompute", method: str | None = None, **sizes: int) -> SimpleNamespace:
    parallel = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1} | sizes
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel),
        speculative_config=None if method is None else SimpleNamespace(method=method),
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy),
    )


def groups(*specs: object) -> SimpleNamespace:
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def without_a_method() -> object:
    with mock.patch.object(KVConnectorBase_V1, "get_num_new_matched_tokens", new=None):
        return check_release()


def main() -> None:
    """Print name -> text."""
    full, sliding = FullAttentionSpec(**_ATTENTION), SlidingWindowSpec(**_ATTENTION, sliding_window=128)
    calls: dict[str, Callable[[], object]] = {
        "release": check_release,
        "missing": without_a_method,
        "served": lambda: deployment._check_parallel(configured(method="ngram")),
        "policy": lambda: deployment._check_parallel(configured(policy="fail")),
        "dcp": lambda: deployment._check_parallel(configured(decode_context_parallel_size=2)),
        "draft": lambda: deployment._check_parallel(configured(method="eagle")),
        "one_group": lambda: type(deployment._only_spec(groups(full))).__name__,
        "groups": lambda: deployment._only_spec(groups(full, sliding)),
        "sliding": lambda: deployment._only_spec(groups(sliding)),
    }
    print(json.dumps({name: said(call) for name, call in calls.items()}))


if __name__ == "__main__":
    main()
