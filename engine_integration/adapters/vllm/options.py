"""What an operator says in ``kv_connector_extra_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache_storage.config import (
    check_fields,
    from_mapping,
    load_extra_config,
    option,
    parse_nbytes,
    parse_seconds,
    resolve,
    whole_number,
)
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Topology
from hicache_storage.registry import default_backend, default_extra_config, resolve_store
from hicache_storage.store import ObjectStore

SOURCE = "kv_connector_extra_config"
_MOST = 1 << 24
_LEAST_STAGING, _MOST_STAGING = 64 << 20, 4 << 30


def _store_options(value: object) -> dict[str, object]:
    if isinstance(value, str):
        return {name: setting.value for name, setting in load_extra_config(value, f"{SOURCE}.extra_config").items()}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError('expected an object of options, such as {"path": "/mnt/kv"}, or "@file"')
    return dict(value)


def _layers(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError('expected an object of options, such as {"deadline_s": 2}')  # noqa: TRY004 - as below
    return {str(name): item for name, item in value.items()}


def _fleet(value: object) -> tuple[Topology, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise ValueError("expected topologies such as 'tp4pp2,tp2'")  # noqa: TRY004 - resolve turns ValueError into ConfigError
    try:
        return tuple(part if isinstance(part, Topology) else Topology.parse(str(part)) for part in parts)
    except ConfigError as error:
        raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How one vLLM deployment uses a store."""

    backend: str | None = option(
        None,
        doc="the store: a backend's name, a URL such as file:///mnt/kv, or module:Class",
        aliases=("hicache_storage_backend",),
    )
    extra_config: dict[str, object] | None = option(
        None,
        doc="options of the store and of the layers around it",
        parse=_store_options,
        aliases=("hicache_storage_backend_extra_config",),
    )
    middleware: dict[str, object] | None = option(
        None, doc="the layers around the store, where extra_config does not have them", parse=_layers
    )
    model_id: str | None = option(None, doc="name of the model in all deployments that share; default: vLLM's --model")
    weights_revision: str | None = option(
        None, doc="version of the weights; default: vLLM's --revision, or a fingerprint of a local model folder"
    )
    page_tokens: int | None = option(
        None,
        doc="tokens of a page, a multiple of vLLM's block size; default: the block size",
        parse=whole_number(1, _MOST),
        aliases=("page_size",),
    )
    fleet: tuple[Topology, ...] = option(
        (),
        doc="topologies of the other deployments that write to the store, such as 'tp4pp2,tp2'",
        parse=_fleet,
        aliases=("topologies",),
    )
    layer_partition: int | None = option(
        None,
        doc="layers of an object; default: as many as all topologies allow",
        parse=whole_number(1, _MOST),
        aliases=("hicache_storage_layer_partition",),
    )
    head_partition: int | None = option(
        None,
        doc="KV heads of an object; default: as many as all topologies allow",
        parse=whole_number(1, _MOST),
        aliases=("hicache_storage_head_partition",),
    )
    read_only: bool = option(False, doc="restore pages, store none")  # noqa: FBT003 - the default
    lookup_deadline_s: float = option(
        1.0, doc="seconds that a request waits to hear what the store has; then it is computed", parse=parse_seconds
    )
    shutdown_deadline_s: float = option(
        10.0, doc="seconds that a worker waits at its end for pages that are being stored", parse=parse_seconds
    )
    staging_nbytes: int | None = option(
        None,
        doc="bytes of each worker's host memory for pages on their way, half for each direction; "
        "default: twice what one step of the engine can compute, 64 MiB to 4 GiB",
        parse=parse_nbytes,
    )
    load_threads: int = option(2, doc="requests that a worker restores side by side", parse=whole_number(1, 64))

    def __post_init__(self) -> None:
        check_fields(self, "vllm")

    def staging_pages(self, page_nbytes: int, step_pages: int) -> int:
        """Return the pages of host memory for each direction.

        Args:
            step_pages: the most that one step of the engine computes.
        """
        wanted = min(max(2 * step_pages * page_nbytes, _LEAST_STAGING), _MOST_STAGING)
        nbytes = wanted if self.staging_nbytes is None else self.staging_nbytes
        return max(1, nbytes // 2 // page_nbytes)

    def open_store(self) -> ObjectStore:
        """Return the open store; the caller closes it. Raises as `registry.open_store` does."""
        own = from_mapping(self.extra_config or {}, f"{SOURCE}.extra_config")
        extra = dict(own or default_extra_config(None))
        if self.middleware is not None:
            if any(name.partition(".")[0] == "middleware" for name in extra):
                raise ConfigError("vllm option middleware is given twice: beside extra_config and in it")
            extra |= from_mapping({"middleware": self.middleware}, SOURCE)
        return resolve_store(default_backend(self.backend), extra).open()


def read_options(extra: Mapping[str, object]) -> VllmOptions:
    """Return the options of ``kv_connector_extra_config`` and the environment.

    Raises:
        ConfigError: an unknown option, or a value that does not fit.
    """
    try:
        options, _ = resolve(VllmOptions, "vllm", [from_mapping(extra, SOURCE)])
    except ConfigError as error:
        raise ConfigError(f"--kv-transfer-config: {error}") from error
    return options
