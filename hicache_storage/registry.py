"""From what an operator typed to an open store: a name, a URL or ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from hicache_storage.config import Setting, from_mapping, resolve
from hicache_storage.errors import ConfigError
from hicache_storage.middleware.options import MiddlewareOptions, wrap
from hicache_storage.store import ObjectStore

ENTRY_POINT_GROUP = "hicache_storage.backends"

_MIDDLEWARE = "middleware"


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
            evicting: False leaves the backend's option ``capacity_nbytes`` out, if it has one, so that nothing
                of the store's content makes room for what is written.
        """
        options = _looking_only(self.options) if looking else self.options
        options = options if evicting else _without_capacity(options)
        store = self.store_type(options)  # type: ignore[call-arg]  # by contract, see ObjectStore
        try:
            return wrap(store, self.middleware)
        except BaseException:
            store.close()
            raise


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


def resolve_store(target: str, extra: Mapping[str, Setting], environ: Mapping[str, str] | None = None) -> ResolvedStore:
    """Return the backend and the options that *target*, *extra* and the environment give together.

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
    options_type: type[object] = store_type.options_type
    split = [_split_middleware(source) for source in sources]
    options, settings = resolve(options_type, store_type.name, [own for own, _ in split], environ)
    layers, layer_settings = resolve(MiddlewareOptions, _MIDDLEWARE, [of_layers for _, of_layers in split], environ)
    settings += [Setting(f"{_MIDDLEWARE}.{s.name}", s.value, s.source) for s in layer_settings if s.source != "default"]
    return ResolvedStore(store_type.name, store_type, options, layers, tuple(settings))


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


def _looking_only(options: object) -> object:
    """Return *options* with ``create`` off, or as they are if they have no such option."""
    if not is_dataclass(options) or isinstance(options, type):
        return options
    has_create = any(field.name == "create" and field.default is True for field in fields(options))
    return replace(options, create=False) if has_create else options


def _without_capacity(options: object) -> object:
    """Return *options* without a capacity, or as they are if they have no such option."""
    if not is_dataclass(options) or isinstance(options, type):
        return options
    has_capacity = any(field.name == "capacity_nbytes" and field.default is None for field in fields(options))
    return replace(options, capacity_nbytes=None) if has_capacity else options


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
