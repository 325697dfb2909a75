"""The flags of `hicache serve` as values, under the names that the article and SGLang use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hicache_storage.config import Secret, check_fields, option, parse_seconds, whole_number
from hicache_storage.engine_integration.consensus.options import Mode
from hicache_storage.engine_integration.reference_engine.engine_config import LogLevel
from hicache_storage.engine_integration.reference_engine.model_folder import default_cache
from hicache_storage.errors import ConfigError
from hicache_storage.layout import canonical_dtype

KeyScheme = Literal["unified", "rank-suffix"]
HOST_LAYOUT = "page_unified"
IO_BACKEND = "kernel"

_MOST = 1 << 31
_KV_DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""In which the engine keeps KV; more have a place in keys."""


def _port(value: object) -> int:
    return whole_number(0, 65535)(value)


def _count(value: object) -> int:
    return whole_number(1, _MOST)(value)


def _token(value: object) -> Secret:
    text = value.reveal() if isinstance(value, Secret) else value
    if not isinstance(text, str) or not text.strip():
        raise ValueError("expected a token that is not empty")
    return Secret(text.strip())


def _dtype(value: object) -> str:
    names = {"float32": "float32", "float": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}
    if not isinstance(value, str) or value not in names:
        raise ValueError("expected float32 or bfloat16")
    return names[value]


def _kv_dtype(value: object) -> str:
    if value == "auto":
        return "auto"
    try:
        name = canonical_dtype(str(value))
    except ConfigError:
        name = ""
    if name not in _KV_DTYPES:
        raise ValueError("expected auto, float32, bfloat16, fp8_e4m3 or fp8_e5m2")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What is served, how, and with which cache. Each field is a flag and ``HICACHE_SERVE_<FIELD>``."""

    model_path: Path | None = option(
        None, doc="a safetensors folder or a GGUF file; default: SmolLM2-135M-Instruct", aliases=("model",)
    )
    served_model_name: str | None = option(None, doc="the model's name for clients; default: the folder's or file's")
    model_cache: Path = option(default_cache(), doc="folder of converted GGUF models")
    context_length: int | None = option(
        None,
        doc="most tokens of a prompt and its answer; default: the model's, or what the device pool holds",
        parse=_count,
    )
    dtype: str = option("float32", doc="of weights and computation, float32 or bfloat16", parse=_dtype)
    kv_cache_dtype: str = option(
        "auto",
        doc="of the KV, auto is that of the weights; fp8_e4m3 or fp8_e5m2 for a half or a quarter",
        parse=_kv_dtype,
    )
    device: Literal["cpu", "cuda"] = option("cpu", doc="what computes, cpu or cuda")
    tp_size: int = option(1, doc="tensor-parallel ranks", parse=_count, aliases=("tp", "tensor_parallel_size"))
    pp_size: int = option(1, doc="pipeline stages", parse=_count, aliases=("pp", "pipeline_parallel_size"))
    page_size: int = option(16, doc="tokens of a page", parse=_count)
    chunked_prefill_size: int = option(512, doc="prompts are computed in chunks of so many tokens", parse=_count)
    max_running_requests: int = option(32, doc="requests that are computed at the same time", parse=_count)
    max_total_tokens: int = option(16384, doc="tokens that each rank's device pool holds", parse=_count)

    host: str = option("127.0.0.1", doc="address to listen on")
    port: int = option(30000, doc="port to listen on; 0 takes a free one and prints it", parse=_port)
    admin_token: Secret | None = option(
        None,
        doc="what admin endpoints ask for; needed where other machines reach the server. Other users of this machine see "
        "it among the flags, but not in HICACHE_ADMIN_TOKEN",
        parse=_token,
        env=("HICACHE_ADMIN_TOKEN",),
    )
    drain_timeout_s: float = option(
        30.0, doc="seconds that running requests may go on after the signal to stop", parse=parse_seconds
    )
    record_requests: Path | None = option(None, doc="new file for a trace of the requests that hicache replay reads")
    log_folder: Path | None = option(None, doc="folder for a log of each rank; default: one that is removed at the end")
    log_level: LogLevel | None = option(
        None,
        doc="least level that is logged, debug, info, warning or error; default: warning, or as -v says, and info in the "
        "logs of the ranks",
    )

    rank_consensus: Mode | None = option(
        None,
        doc="compare the decisions of all ranks, and report or stop where they part: off, report or stop; "
        "default: off, or what HICACHE_RANK_CONSENSUS_CHECKER says",
    )

    disable_radix_cache: bool = option(False, doc="share nothing between requests")  # noqa: FBT003 - the default
    enable_hierarchical_cache: bool = option(
        False,  # noqa: FBT003 - the default
        doc="keep prefixes on the host too and, with a storage backend, in a store",
    )
    hicache_storage_backend: str | None = option(
        None,
        doc="a registered name, a URL such as file:///mnt/kv, or module:Class; default: HICACHE_STORAGE_BACKEND where "
        "there is a host tier, else no store",
        aliases=("store",),
        env=("HICACHE_STORAGE_BACKEND",),
    )
    hicache_storage_backend_extra_config: str | None = option(
        None, doc="the backend's options as JSON, or @FILE in JSON, YAML or TOML; tier options may be among them"
    )
    hicache_storage_key_scheme: KeyScheme = option(
        "unified", doc="unified: any topology reads what any other wrote; rank-suffix: the same topology alone"
    )
    hicache_storage_head_partition: int | None = option(None, doc="KV heads of an object", parse=_count)
    hicache_storage_layer_partition: int | None = option(None, doc="layers of an object", parse=_count)
    hicache_storage_read_only: bool = option(False, doc="never write to the store")  # noqa: FBT003 - the default
    hicache_mem_layout: str | None = option(None, doc=f"order of a host page; this engine has {HOST_LAYOUT}")
    hicache_io_backend: str | None = option(None, doc=f"what moves pages to the host; this engine has {IO_BACKEND}")

    def __post_init__(self) -> None:
        check_fields(self, "serve")

    @property
    def topology(self) -> str:
        """The topology's name."""
        return f"tp{self.tp_size}pp{self.pp_size}"
