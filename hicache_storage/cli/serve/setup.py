"""From options to what an engine is started with: the model, the grid of objects, the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hicache_storage.cli.serve.arguments import Settings
from hicache_storage.cli.serve.completions import ServedModel
from hicache_storage.cli.serve.options import HOST_LAYOUT, IO_BACKEND, ServeOptions
from hicache_storage.cli.serve.store_state import StoreState, describe_store
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.model_config import ModelConfig, read_model_config
from hicache_storage.engine_integration.reference_engine.model_folder import ModelSource, find_model
from hicache_storage.engine_integration.reference_engine.partition import part_of
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Grid, KVShape, Topology, plan_grid

_CONVERT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """An engine to start and how clients see it."""

    engine: EngineConfig
    model: ServedModel
    folder: Path
    store: StoreState | None


def prepare(settings: Settings, tell: Callable[[str], None]) -> Setup:
    """Return what the settings mean for the model that they name. A GGUF file is converted, once.

    Args:
        tell: gets a line for each thing that was chosen without having been asked for.

    Raises:
        ConfigError: there is no such model or store, or the model does not run in the topology.
        LayoutError: the model's layers or heads cannot be divided so.
    """
    options = settings.serve
    store = None if settings.store is None else describe_store(settings.store.backend, settings.store.extra_config)
    source = _model(options, tell)
    config = read_model_config(source.folder)
    topology = Topology.parse(options.topology)
    for tp_rank, pp_rank in topology.ranks():
        part_of(config, topology, tp_rank=tp_rank, pp_rank=pp_rank)
    kv_dtype = options.dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    shape = config.kv_shape(dtype=kv_dtype, page_tokens=options.page_size)
    grid = _grid(options, shape, topology, tell) if options.enable_hierarchical_cache else None
    if store is not None:
        tell(f"store: {store}")
    return Setup(
        engine=_engine_config(settings, source, kv_dtype, grid),
        model=_served(options, source, config),
        folder=source.folder,
        store=store,
    )


def _model(options: ServeOptions, tell: Callable[[str], None]) -> ModelSource:
    source = find_model(options.model_path, options.model_cache)
    if not source.is_ready:
        tell(f"model: converting {source.name} once, which takes some 20 s; it is kept in {source.folder.parent}")
        source.prepare(timeout_s=_CONVERT_TIMEOUT_S)
    tell(f"model: {source.name} in {source.folder}")
    return source


def _served(options: ServeOptions, source: ModelSource, config: ModelConfig) -> ServedModel:
    asked = options.context_length
    if asked is not None and asked > config.max_tokens:
        raise ConfigError(f"--context-length {asked}, but the model takes {config.max_tokens} tokens")
    pool = options.max_total_tokens // options.page_size * options.page_size
    path = [str(options.model_path)] if options.model_path is not None else []
    return ServedModel(
        name=options.served_model_name or source.name,
        aliases=tuple(path),
        context_tokens=min(asked or config.max_tokens, pool),
        vocab_size=config.vocab_size,
    )


def _engine_config(settings: Settings, source: ModelSource, kv_dtype: str, grid: Grid | None) -> EngineConfig:
    options = settings.serve
    if options.max_total_tokens < options.page_size:
        raise ConfigError(f"--max-total-tokens {options.max_total_tokens} is less than --page-size {options.page_size}")
    return EngineConfig(
        model_id=source.name,
        model=str(source.folder),
        weights_revision=source.revision,
        topology=options.topology,
        dtype=options.dtype,
        kv_dtype=kv_dtype,
        device=options.device,
        page_tokens=options.page_size,
        device_pages=options.max_total_tokens // options.page_size,
        chunk_tokens=options.chunked_prefill_size,
        max_running=options.max_running_requests,
        cache="off" if options.disable_radix_cache else "host" if options.enable_hierarchical_cache else "device",
        tiers=settings.tiers,
        store=settings.store,
        key_scheme=options.hicache_storage_key_scheme,
        layer_partition=None if grid is None else grid.layer_partition,
        head_partition=None if grid is None else grid.head_partition,
        writes_store=not options.hicache_storage_read_only,
        rank_consensus=options.rank_consensus,
        log_level=options.log_level or "info",
    )


def _grid(options: ServeOptions, shape: KVShape, topology: Topology, tell: Callable[[str], None]) -> Grid | None:
    """Return the grid of objects; None for whole pages of each rank.

    Raises:
        ConfigError: this topology cannot write the grid and is to.
    """
    if options.hicache_storage_key_scheme == "rank-suffix":
        tell(f"keys: rank-suffix, so {topology.name} shares with {topology.name} alone")
        return None
    tell(f"keys: unified, so host pages are {HOST_LAYOUT} and the I/O backend is {IO_BACKEND}")
    layers, heads = options.hicache_storage_layer_partition, options.hicache_storage_head_partition
    if shape.is_mla and heads is not None:
        raise ConfigError(f"--hicache-storage-head-partition {heads}: the model has MLA, whose rows have no heads")
    plan = plan_grid(shape, [topology], layer_partition=layers, head_partition=heads)
    if plan.obstacles and not options.hicache_storage_read_only:
        one = plan.obstacles[0]
        raise ConfigError(
            f"{topology.name} cannot write objects of {_in_words(plan.grid, shape)}: {one.reason}. Give "
            "--hicache-storage-read-only to read them, or partitions that divide each rank's share"
        )
    missing = [f"--hicache-storage-{axis}-partition" for axis, value in _unset(shape, layers, heads) if value is None]
    if missing:
        tell(_warning(plan.grid, shape, topology, missing))
    return plan.grid


def _unset(shape: KVShape, layers: int | None, heads: int | None) -> list[tuple[str, int | None]]:
    return [("layer", layers)] if shape.is_mla else [("layer", layers), ("head", heads)]


def _warning(grid: Grid, shape: KVShape, topology: Topology, missing: list[str]) -> str:
    """Say what a grid that was chosen for one topology keeps from sharing."""
    finer = "more pipeline stages" if shape.is_mla else "more pipeline stages or TP ranks"
    return (
        f"warning: {' and '.join(missing)} not given: objects are {_in_words(grid, shape)}, as large as "
        f"{topology.name} can write. Servers share only where these are equal, and a server with {finer} could then "
        "only read. `hicache plan --fleet` computes what fits several topologies; give every server the same"
    )


def _in_words(grid: Grid, shape: KVShape) -> str:
    layers = f"{grid.layer_partition} layers"
    return layers if shape.is_mla else f"{layers} x {grid.head_partition} KV heads"
