"""From what an operator typed to an open store: a name, a URL or ``module:Class``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from hicache_storage.config import (
    Setting,
    from_environment,
    from_mapping,
    load_extra_config,
    refuse_unknown_variables,
    resolve,
)
from hicache_storage.errors import ConfigError
from hicache_storage.middleware.options import MiddlewareOptions, wrap
from hicache_storage.store import ObjectStore

ENTRY_POINT_GROUP = "hicache_storage.backends"

_EXTRA_CONFIG = "HICACHE_STORAGE_BACKEND_EXTRA_CONFIG"
_MIDDLEWARE = "middleware"
_LOOKING = {"create": (True, False)}
_NOT_EVICTING = {"capacity_nbytes": (None, None), "evict": (True, False)}
"""Options that a backend may have: what the default of one is, and what it is to be."""


@dataclass(frozen=True, slots=True)
class ResolvedStore:
    """A backend with its options worked out, not opened yet.

    Attributes:
        settings: every option with its value and the source that gave it; those of the layers
            around the store are named ``middleware.<option>``.
    """

    backend: str
    store_type: type[ObjectStore]
    options: object
    middleware: MiddlewareOptions
    settings: tuple[Setting, ...]

    def open(self, *, looking: bool = False, evicting: bool = True) -> ObjectStore:
        """Return the open store with its layers; the caller closes it.

        Args:
            looking: turn the backend's option ``create`` off, if it has one: what is not there is not
                made. All other options stay as they are.
            evicting: False leaves the backend's option ``capacity_nbytes`` out and turns ``evict`` off, if it
                has one of them, so that nothing of the store's content makes room for what is written.
        """
        options = _with(self.options, _LOOKING) if looking else self.options
        options = options if evicting else _with(options, _NOT_EVICTING)
        store = self.store_type(options)  # type: ignore[call-arg]  # by contract, see ObjectStore
        try:
            return wrap(store, self.middleware)
        except BaseException:
            store.close()
            raise


def default_backend(backend: str | None, environ: Mapping[str, str] | None = None) -> str:
    """Return the backend of the flag or, where there is none, of the environment."""
    environ = os.environ if environ is None else environ
    return backend or environ.get("HICACHE_STORAGE_BACKEND") or "file"


def default_extra_config(extra_config: str | None, environ: Mapping[str, str] | None = None) -> dict[str, Setting]:
    """Return the settings of the flag or, where there is none, of the variable, which is their source then.

    Raises:
        ConfigError: as `load_extra_config`.
    """
    if extra_config:
        return load_extra_config(extra_config)
    environ = os.environ if environ is None else environ
    text = environ.get(_EXTRA_CONFIG)
    return load_extra_config(text, f"environment variable {_EXTRA_CONFIG}") if text else {}


def open_store(target: str, options: Mapping[str, object] | None = None, *, looking: bool = False) -> ObjectStore:
    """Return an open store for *target*; the caller closes it.

    Args:
        target: a registered name (``file``), a URL (``file:///mnt/kv?io_threads=8``) or ``module:Class``.
        options: options by name, as ``--hicache-storage-backend-extra-config`` gives them.
        looking: make nothing that is not there, see `ResolvedStore.open`.

    Raises:
        ConfigError: no such backend, a missing package, or a wrong option.
        StoreUnavailable: the store cannot be reached, or is not there and was only to be looked at.
    """
    return resolve_store(target, from_mapping(options or {}, "options")).open(looking=looking)


def resolve_store(
    target: str, extra: Mapping[str, Setting], environ: Mapping[str, str] | None = None, *, nested: bool = False
) -> ResolvedStore:
    """Return the backend and the options that *target*, *extra* and the environment give together.

    ``HICACHE_<BACKEND>_MIDDLEWARE`` and ``HICACHE_<BACKEND>_MIDDLEWARE_<OPTION>`` are layers around stores of this
    backend, ``HICACHE_MIDDLEWARE_<OPTION>`` around any.

    Args:
        nested: the store is part of another one, around which the layers for any store are.

    Raises:
        ConfigError: as `open_store`.
    """
    sources: list[Mapping[str, Setting]] = [extra]
    if "://" in target:
        url = _split(target)
        store_type = _load(url.scheme)
        sources.insert(0, _url_settings(url, store_type))
    elif ":" in target:
        store_type = _import(target)
    else:
        store_type = _load(target)
    _refuse_unknown_variables(store_type, environ)
    options_type: type[object] = store_type.options_type
    split = [_split_middleware(source) for source in sources]
    options, settings = resolve(options_type, store_type.name, [own for own, _ in split], environ)
    of_layers = [source for _, source in split]
    of_layers.append(_layers_of_environment(store_type.name, of_layers, environ))
    layers, layer_settings = resolve(MiddlewareOptions, _MIDDLEWARE, of_layers, {} if nested else environ)
    settings += [Setting(f"{_MIDDLEWARE}.{s.name}", s.value, s.source) for s in layer_settings if s.source != "default"]
    return ResolvedStore(store_type.name, store_type, options, layers, tuple(settings))


def _refuse_unknown_variables(store_type: type[ObjectStore], environ: Mapping[str, str] | None) -> None:
    """Raise where the environment names an option that the backend, or the layers, do not have."""
    others = list(known_backends())
    layers = [field.name for field in fields(MiddlewareOptions)]
    own = [field.name for field in fields(store_type.options_type)]
    own += [_MIDDLEWARE, *(f"{_MIDDLEWARE}_{name}" for name in layers)]
    refuse_unknown_variables(store_type.name, own, others, environ)
    refuse_unknown_variables(_MIDDLEWARE, layers, others, environ)


def _layers_of_environment(
    backend: str, given: Sequence[Mapping[str, Setting]], environ: Mapping[str, str] | None
) -> dict[str, Setting]:
    """Return the options of the layers around this *backend* that the environment has and *given* lacks."""
    found: dict[str, Setting] = {}
    if (whole := from_environment(backend, _MIDDLEWARE, environ)) is not None:
        found = load_extra_config(str(whole.value), whole.source)
    for field in fields(MiddlewareOptions):
        if (one := from_environment(backend, f"{_MIDDLEWARE}_{field.name}", environ)) is not None:
            found[field.name] = Setting(field.name, one.value, one.source)
    return {name: setting for name, setting in found.items() if not any(name in source for source in given)}


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


def _with(options: object, changes: Mapping[str, tuple[object, object]]) -> object:
    """Return *options* with other values for those fields that it has.

    Args:
        changes: by the field's name, its default, by which it is known to be the option meant, and the value.
    """
    if not is_dataclass(options) or isinstance(options, type):
        return options
    known = {field.name for field in fields(options) if field.default is changes.get(field.name, (MISSING,))[0]}
    return replace(options, **{name: value for name, (_, value) in changes.items() if name in known})


def _split_middleware(source: Mapping[str, Setting]) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Return the backend's own settings and those of the layers: an object ``middleware``, or ``middleware.<option>``."""
    own: dict[str, Setting] = {}
    layers: dict[str, Setting] = {}
    for setting in source.values():
        head, dot, name = setting.name.partition(".")
        if head != _MIDDLEWARE:
            own[setting.name] = setting
        elif dot:
            layers[name] = Setting(name, setting.value, setting.source)
        elif isinstance(setting.value, Mapping):
            layers |= from_mapping({str(key): value for key, value in setting.value.items()}, setting.source)
        else:
            raise ConfigError(f"{_MIDDLEWARE} = {setting.value!r} from {setting.source}: expected an object of options")
    return own, layers


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"


def _load(name: str) -> type[ObjectStore]:
    known = known_backends()
    if name not in known:
        raise ConfigError(
            f"no storage backend {name!r}{_folder_hint(name)}; known are {', '.join(sorted(known))}; "
            "any other class can be named as module:Class"
        )
    point = known[name]
    try:
        loaded = point.load()
    except ImportError as error:
        raise ConfigError(
            f"backend {name!r} needs a package that is not installed ({error}): pip install '{_install(point)}'"
        ) from error
    except AttributeError as error:
        raise ConfigError(f"backend {name!r} of {_owner(point)} cannot be loaded: {error}") from error
    return _checked(loaded, point.value)


def _folder_hint(target: str) -> str:
    """Return how a folder is written, where *target* looks like one."""
    return f", the folder is written {Path(target).absolute().as_uri()}" if "/" in target else ""


def _install(point: EntryPoint) -> str:
    """Return what to install for the packages that a backend needs: an extra of its own name, if there is one."""
    if point.dist is None:
        return f"hicache-storage[{point.name}]"
    extras = point.dist.metadata.get_all("Provides-Extra") or []
    return f"{point.dist.name}[{point.name}]" if point.name in extras else point.dist.name


def _import(target: str) -> type[ObjectStore]:
    module, _, name = target.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        url = f"a URL is written {module}://{name}; " if name.startswith("/") else ""
        raise ConfigError(f"backend {target!r} cannot be imported: {error}; {url}expected module:Class") from error
    return _checked(loaded, target)


def _checked(loaded: object, where: str) -> type[ObjectStore]:
    if not (isinstance(loaded, type) and issubclass(loaded, ObjectStore)):
        raise ConfigError(f"{where} is no subclass of hicache_storage.ObjectStore")
    for attribute in ("name", "options_type"):
        if not hasattr(loaded, attribute):
            raise ConfigError(f"{where} has no class attribute {attribute!r}; see docs/backend-guide.md")
    if loaded.__abstractmethods__:
        raise ConfigError(f"{where} lacks {', '.join(sorted(loaded.__abstractmethods__))}; see docs/backend-guide.md")
    options_type = loaded.options_type
    if not is_dataclass(options_type) or any("doc" not in field.metadata for field in fields(options_type)):
        raise ConfigError(
            f"options_type of {where} must be a dataclass of hicache_storage.config.option() fields; "
            "see docs/backend-guide.md"
        )
    return loaded


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad_url("its host cannot be read") from None
    if not parts.scheme:
        raise _bad_url("what stands before :// can be no backend's name")
    if "#" in url:
        raise _bad_url("it has a '#', which is written %23")
    return parts


def _bad_url(reason: str) -> ConfigError:
    """Return the error for a URL; it may carry a password, so it is not shown."""
    return ConfigError(f"store URL: {reason}; expected <backend>://<host or nothing>/<path>?option=value")


def _query(parts: SplitResult) -> dict[str, object]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), errors="strict")
    except ValueError:
        raise _bad_url("behind its ? stands something else than option=value&option=value") from None
    values: dict[str, object] = {}
    for name, value in pairs:
        if name in values:
            raise ConfigError(f"option {name} is given twice in the URL of backend {parts.scheme}")
        values[name] = value
    return values


def _url_settings(parts: SplitResult, store_type: type[ObjectStore]) -> dict[str, Setting]:
    """Return a URL's parts as options; which options a path, host or user stand for is the backend's choice.

    A backend whose options have a field ``url`` gets the URL without its query; otherwise the path
    is the option ``path``. Query parameters are options of their own names in any case.
    """
    values = _query(parts)
    names = {field.name for field in fields(store_type.options_type)}
    if "url" in names:
        values["url"] = parts._replace(query="").geturl()
    elif parts.path or parts.netloc:
        if "path" not in names:
            raise ConfigError(f"backend {store_type.name} has no path: expected {parts.scheme}://?option=value")
        if parts.netloc not in ("", "localhost"):
            raise _bad_url(f"a path starts with three slashes, {parts.scheme}:///folder")
        if "path" in values:
            raise ConfigError(f"option path is given twice in the URL of backend {store_type.name}")
        values["path"] = unquote(parts.path, errors="surrogateescape")
    return from_mapping(values, "URL")
