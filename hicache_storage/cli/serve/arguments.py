"""From a command line to options: one flag for each field, and what flags may not stand together."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass

import msgspec

from hicache_storage.cli.options import add_option_flag
from hicache_storage.cli.serve.options import HOST_LAYOUT, IO_BACKEND, ServeOptions
from hicache_storage.config import (
    Setting,
    from_environment,
    from_mapping,
    refuse_unknown_variables,
    resolve,
)
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.reference_engine.engine_config import StoreTarget
from hicache_storage.errors import ConfigError
from hicache_storage.registry import default_extra_config, known_backends, resolve_store

_SOURCE = "the command line"
_NEEDS_HIERARCHY = (
    "hicache_storage_backend",
    "hicache_storage_backend_extra_config",
    "hicache_storage_key_scheme",
    "hicache_storage_head_partition",
    "hicache_storage_layer_partition",
    "hicache_storage_read_only",
    "hicache_mem_layout",
    "hicache_io_backend",
)
_HOST_SIZES = ("host_nbytes", "host_ratio", "host_memory_fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that the command line and the environment say."""

    serve: ServeOptions
    tiers: TierOptions
    store: StoreTarget | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option."""
    server = parser.add_argument_group("model and server")
    cache = parser.add_argument_group("cache")
    for field in dataclasses.fields(ServeOptions):
        is_of_cache = field.name.startswith("hicache_") or (
            field.name.endswith("_cache") and field.name != "model_cache"
        )
        add_option_flag(cache if is_of_cache else server, field, [field.name, *field.metadata["aliases"]])
    tiers = parser.add_argument_group("tiers", "their own names and, where it has one, SGLang's")
    for field in dataclasses.fields(TierOptions):
        add_option_flag(tiers, field, [*field.metadata["aliases"], field.name])


def read_settings(args: argparse.Namespace) -> Settings:
    """Return what the flags and the environment say together.

    Raises:
        ConfigError: a value does not fit, two flags contradict each other, of which the message names both, or a
            variable of the environment names no option.
    """
    _check_variables()
    options, _ = resolve(ServeOptions, "serve", [from_mapping(_given(args, ServeOptions), _SOURCE)])
    tiers = _given(args, TierOptions)
    _check_hierarchy(options, [*_given(args, ServeOptions), *tiers])
    _check_scheme(options)
    store, of_tiers = _store_target(options)
    _check_size(tiers)
    resolved, _ = resolve(TierOptions, "tier", [from_mapping(tiers, _SOURCE), of_tiers])
    return Settings(serve=options, tiers=resolved, store=store)


def flag_of(name: str) -> str:
    """Return the flag of an option; a tier's under SGLang's name where it has one."""
    aliases = {field.name: field.metadata["aliases"] for field in dataclasses.fields(TierOptions)}
    shown = next((alias for alias in aliases.get(name, ()) if alias.startswith("hicache_")), name)
    return f"--{shown.replace('_', '-')}"


def _check_variables() -> None:
    """Refuse a mistyped variable of the environment: it would be without effect."""
    others = list(known_backends())
    for options_type, section in ((ServeOptions, "serve"), (TierOptions, "tier")):
        refuse_unknown_variables(section, [field.name for field in dataclasses.fields(options_type)], others)


def _given(args: argparse.Namespace, options_type: type[ServeOptions | TierOptions]) -> dict[str, object]:
    names = [field.name for field in dataclasses.fields(options_type)]
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def _check_hierarchy(options: ServeOptions, given: list[str]) -> None:
    if options.enable_hierarchical_cache:
        if options.disable_radix_cache:
            raise ConfigError(
                "--disable-radix-cache and --enable-hierarchical-cache: the host tier keeps what the radix cache has"
            )
        return
    tiers = {field.name for field in dataclasses.fields(TierOptions)} - {"eviction_policy"}
    needs = [*_NEEDS_HIERARCHY, *tiers]
    stray = [flag_of(name) for name in given if name in needs]
    # HICACHE_STORAGE_BACKEND is for every command: it does not say that this server is to use it.
    if not stray and from_environment("serve", "hicache_storage_backend") is not None:
        stray = ["HICACHE_SERVE_HICACHE_STORAGE_BACKEND"]
    if stray:
        raise ConfigError(f"{', '.join(stray)} without --enable-hierarchical-cache: there is no host tier to use it")


def _check_size(tiers: dict[str, object]) -> None:
    """Refuse two sizes of the host tier, and one without a unit: SGLang means GB by it, everything else here bytes."""
    given = [flag_of(name) for name in _HOST_SIZES if name in tiers]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: the host pool has one size; give one of them")
    size = tiers.get("host_nbytes")
    if isinstance(size, str) and size.strip().isdecimal():
        raise ConfigError(
            f"--hicache-size {size}: with which unit? {size}GB is what SGLang means, {size}GiB is possible"
        )


def _check_scheme(options: ServeOptions) -> None:
    """Refuse what the key scheme rules out."""
    scheme = f"--hicache-storage-key-scheme {options.hicache_storage_key_scheme}"
    partitions = ("hicache_storage_head_partition", "hicache_storage_layer_partition")
    chosen = [flag_of(name) for name in partitions if getattr(options, name) is not None]
    if options.hicache_storage_key_scheme == "rank-suffix" and chosen:
        raise ConfigError(f"{' and '.join(chosen)} with {scheme}: that scheme stores each rank's page whole")
    for name, only in (("hicache_mem_layout", HOST_LAYOUT), ("hicache_io_backend", IO_BACKEND)):
        value = getattr(options, name)
        if value not in (None, only):
            why = "needs" if options.hicache_storage_key_scheme == "unified" else "of this engine has"
            raise ConfigError(f"{flag_of(name)} {value} with {scheme}, which {why} {only}")


def _store_target(options: ServeOptions) -> tuple[StoreTarget | None, dict[str, Setting]]:
    """Return the store and the tier options that its extra config holds, as SGLang's may; None without a host tier."""
    backend, extra_config = options.hicache_storage_backend, options.hicache_storage_backend_extra_config
    if backend is None and extra_config is not None:
        raise ConfigError("--hicache-storage-backend-extra-config without --hicache-storage-backend")
    if backend is None or not options.enable_hierarchical_cache:
        return None, {}
    settings = default_extra_config(extra_config)
    if not settings:
        return StoreTarget(backend=backend), {}
    names = {alias for field in dataclasses.fields(TierOptions) for alias in (field.name, *field.metadata["aliases"])}
    of_store = {name: setting for name, setting in settings.items() if name not in names}
    of_tiers = {name: setting for name, setting in settings.items() if name in names}
    resolve_store(backend, of_store)  # What is wrong is refused here, where it is known who said it.
    values = {name: setting.value for name, setting in of_store.items()}
    return StoreTarget(backend=backend, extra_config=msgspec.json.encode(values).decode()), of_tiers
