"""From what an operator typed to an open store: a name, a URL or ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from hicache_storage.config import Setting, from_mapping, resolve
from hicache_storage.errors import ConfigError
from hicache_storage.store import ObjectStore

ENTRY_POINT_GROUP = "hicache_storage.backends"


@dataclass(frozen=True, slots=True)
class ResolvedStore:
    """A backend with its options worked out, not opened yet.

    Attributes:
        settings: every option with its value and the source that gave it.
    """

    backend: str
    store_type: type[ObjectStore]
    options: object
    settings: tuple[Setting, ...]

    def open(self) -> ObjectStore:
        """Return the open store; the caller closes it."""
        return self.store_type(self.options)  # type: ignore[call-arg]  # by contract, see ObjectStore


def open_store(target: str, options: Mapping[str, object] | None = None) -> ObjectStore:
    """Return an open store for *target*; the caller closes it.

    Args:
        target: a registered name (``file``), a URL (``file:///mnt/kv?io_threads=8``) or ``module:Class``.
        options: options by name, as ``--hicache-storage-backend-extra-config`` gives them.

    Raises:
        ConfigError: no such backend, a missing package, or a wrong option.
    """
    return resolve_store(target, from_mapping(options or {}, "options")).open()


def resolve_store(target: str, extra: Mapping[str, Setting], environ: Mapping[str, str] | None = None) -> ResolvedStore:
    """Return the backend and the options that *target*, *extra* and the environment give together.

    Raises:
        ConfigError: as `open_store`.
    """
    sources: list[Mapping[str, Setting]] = [extra]
    if "://" in target:
        store_type = _load(urlsplit(target).scheme)
        sources.insert(0, _url_settings(target, store_type))
    elif ":" in target:
        store_type = _import(target)
    else:
        store_type = _load(target)
    options_type: type[object] = store_type.options_type
    options, settings = resolve(options_type, store_type.name, sources, environ)
    return ResolvedStore(store_type.name, store_type, options, tuple(settings))


def known_backends() -> dict[str, EntryPoint]:
    """Return every registered backend by name.

    Raises:
        ConfigError: two packages register one name for different classes.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise ConfigError(
                f"two packages register the backend {point.name!r}: {_owner(other)} ({other.value}) and "
                f"{_owner(point)} ({point.value}); uninstall one or name yours as module:Class"
            )
    return found


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"


def _load(name: str) -> type[ObjectStore]:
    known = known_backends()
    if name not in known:
        raise ConfigError(
            f"no storage backend {name!r}; known are {', '.join(sorted(known))}; any other class can be named as module:Class"
        )
    try:
        loaded = known[name].load()
    except ImportError as error:
        raise ConfigError(
            f"backend {name!r} needs a package that is not installed ({error}): pip install 'hicache-storage[{name}]'"
        ) from error
    return _checked(loaded, known[name].value)


def _import(target: str) -> type[ObjectStore]:
    module, _, name = target.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"backend {target!r} cannot be imported: {error}; expected module:Class") from error
    return _checked(loaded, target)


def _checked(loaded: object, where: str) -> type[ObjectStore]:
    if not (isinstance(loaded, type) and issubclass(loaded, ObjectStore)):
        raise ConfigError(f"{where} is no subclass of hicache_storage.ObjectStore")
    for attribute in ("name", "options_type"):
        if not hasattr(loaded, attribute):
            raise ConfigError(f"{where} has no class attribute {attribute!r}; see docs/backend-guide.md")
    return loaded


def _url_settings(url: str, store_type: type[ObjectStore]) -> dict[str, Setting]:
    """Return a URL's parts as options; which options a path, host or user stand for is the backend's choice.

    A backend whose options have a field ``url`` gets the URL without its query; otherwise the path
    is the option ``path``. Query parameters are options of their own names in any case.
    """
    parts = urlsplit(url)
    values: dict[str, object] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)):
        if name in values:
            raise ConfigError(f"option {name} is given twice in the URL of backend {store_type.name}")
        values[name] = value
    names = {field.name for field in fields(store_type.options_type)}
    if "url" in names:
        values["url"] = parts._replace(query="", fragment="").geturl()
    elif parts.path or parts.netloc:
        if "path" not in names:
            raise ConfigError(f"backend {store_type.name} has no path: expected {parts.scheme}://?option=value")
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(
                f"{parts.scheme}://{parts.netloc}...: a path starts with three slashes, {parts.scheme}:///folder"
            )
        values["path"] = str(Path(unquote(parts.path)))
    return from_mapping(values, "URL")
