"""Options: where each value came from, what is wrong with it, and what would be right.

Every backend declares a frozen dataclass of options with `option()`. A deployment names a backend
by name, URL or ``module:Class`` and may add a JSON object, ``@file`` (JSON, YAML or TOML) and
environment variables. `resolve` merges them; the first source that has a value wins:

    URL  >  extra config  >  HICACHE_<BACKEND>_<OPTION>  >  aliases in the environment  >  default

This is the only module that reads the environment.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from hicache_storage.errors import ConfigError

T = TypeVar("T")

_MAX_CONFIG_NBYTES = 1 << 20
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}{tail}": 1000**power for power, letter in enumerate("kmgtp", 1) for tail in ("", "b")}
_UNITS |= {f"{letter}i{tail}": 1024**power for power, letter in enumerate("kmgtp", 1) for tail in ("", "b")}


class Secret(str):
    """A string that prints as ``***``; `reveal` gives the value to the SDK that needs it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def reveal(self) -> str:
        return str.__str__(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One option's value and the source that gave it, for error messages and `hicache doctor`."""

    name: str
    value: object
    source: str


def option(
    default: object = dataclasses.MISSING,
    *,
    doc: str,
    parse: Callable[[object], object] | None = None,
    aliases: tuple[str, ...] = (),
    env: tuple[str, ...] = (),
) -> typing.Any:
    """Declare one option of an options dataclass.

    Args:
        default: the value if no source has one; without it the option is required.
        doc: one sentence with the unit, shown by ``hicache doctor --help-backend``.
        parse: turns what a source gave into the value; raises `ValueError` with what would be right.
        aliases: names that other projects use for the same thing, accepted in URL and extra config.
        env: environment variables of other projects that mean the same.
    """
    metadata = {"doc": doc, "parse": parse, "aliases": aliases, "env": env}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def parse_nbytes(value: object) -> int:
    """Return a number of bytes from ``1048576``, ``"1MiB"``, ``"10 GB"`` or ``"1.5g"`` (k = 1000, Ki = 1024)."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("a size is not negative")
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError("expected bytes, such as 1048576, '512MiB' or '10GB'")
    return (
        int(float(match[1]) * _UNITS[match[2].lower()]) if "." in match[1] else int(match[1]) * _UNITS[match[2].lower()]
    )


def load_extra_config(text: str) -> dict[str, Setting]:
    """Read ``--hicache-storage-backend-extra-config``: a JSON object, or ``@file`` in JSON, YAML or TOML.

    Raises:
        ConfigError: it does not parse, is not an object, or is over 1 MiB.
    """
    if not text.startswith("@"):
        return _as_settings(_decode(text.encode(), "json", "extra config"), "extra config")
    path = Path(text[1:])
    try:
        if path.stat().st_size > _MAX_CONFIG_NBYTES:
            raise ConfigError(f"extra config {path} is over {_MAX_CONFIG_NBYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"extra config {path} cannot be read: {error.strerror}") from error
    suffix = path.suffix.lower().lstrip(".")
    if suffix not in ("json", "yaml", "yml", "toml"):
        raise ConfigError(f"extra config {path}: expected a .json, .yaml, .yml or .toml file")
    return _as_settings(_decode(data, suffix, str(path)), str(path))


def default_backend(
    backend: str | None, extra_config: str | None, environ: Mapping[str, str] | None = None
) -> tuple[str, str | None]:
    """Return the backend and its extra config, from the flags or, where they are None, from the environment."""
    environ = os.environ if environ is None else environ
    return (
        backend or environ.get("HICACHE_STORAGE_BACKEND") or "file",
        extra_config or environ.get("HICACHE_STORAGE_BACKEND_EXTRA_CONFIG"),
    )


def from_mapping(values: Mapping[str, object], source: str) -> dict[str, Setting]:
    """Return *values* as settings that came from *source*."""
    return {name: Setting(name, value, source) for name, value in values.items()}


def resolve(
    options_type: type[T],
    backend: str,
    sources: list[Mapping[str, Setting]],
    environ: Mapping[str, str] | None = None,
) -> tuple[T, list[Setting]]:
    """Build a backend's options from *sources* (the first that has a value wins), the environment and defaults.

    Returns:
        The options, and one setting per option that says where its value came from.

    Raises:
        ConfigError: an unknown or missing option, a value that does not fit, or two sources
            of the same call that contradict each other.
    """
    environ = os.environ if environ is None else environ
    fields = {field.name: field for field in dataclasses.fields(options_type)}  # type: ignore[arg-type]
    names = {alias: name for name, field in fields.items() for alias in (name, *field.metadata["aliases"])}
    given: dict[str, Setting] = {}
    for setting in (setting for source in sources for setting in source.values()):
        name = names.get(setting.name)
        if name is None:
            raise ConfigError(_unknown(setting, backend, names))
        if name in given and given[name].value != setting.value:
            first = given[name]
            raise ConfigError(
                f"{backend} option {name} is given twice: {_show(first, fields[name])} in {first.source} "
                f"and {_show(setting, fields[name])} in {setting.source}"
            )
        given.setdefault(name, setting)
    hints = typing.get_type_hints(options_type)
    values: dict[str, object] = {}
    provenance: list[Setting] = []
    for name, field in fields.items():
        found = given.get(name) or _from_environment(field, backend, environ)
        if found is None and field.default is dataclasses.MISSING:
            raise ConfigError(f"{backend} option {name} is required: {field.metadata['doc']}")
        if found is None:
            provenance.append(Setting(name, field.default, "default"))
        else:
            values[name] = _parse(found, field, hints[name], backend)
            provenance.append(Setting(name, values[name], found.source))
    try:
        return options_type(**values), provenance
    except ValueError as error:
        raise ConfigError(f"{backend} options do not fit together: {error}") from error


def _decode(data: bytes, suffix: str, source: str) -> object:
    decoders: dict[str, Callable[[bytes], object]] = {
        "json": msgspec.json.decode,
        "toml": msgspec.toml.decode,
        "yaml": msgspec.yaml.decode,
        "yml": msgspec.yaml.decode,
    }
    if len(data) > _MAX_CONFIG_NBYTES:
        raise ConfigError(f"{source} is over {_MAX_CONFIG_NBYTES} bytes")
    try:
        return decoders[suffix](data)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{source} is not valid {suffix.upper()}: {error}") from error
    except ImportError as error:
        raise ConfigError(f"{source}: YAML needs PyYAML: pip install 'hicache-storage[yaml]'") from error


def _as_settings(value: object, source: str) -> dict[str, Setting]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f'{source}: expected an object of options, such as {{"path": "/mnt/kv"}}')
    return from_mapping(value, source)


def _from_environment(field: dataclasses.Field[object], backend: str, environ: Mapping[str, str]) -> Setting | None:
    own = f"HICACHE_{backend}_{field.name}".upper()
    for variable in (own, *field.metadata["env"]):
        if variable in environ:
            return Setting(field.name, environ[variable], f"environment variable {variable}")
    return None


def _parse(found: Setting, field: dataclasses.Field[object], hint: object, backend: str) -> object:
    parse = field.metadata["parse"]
    try:
        if parse is not None and found.value is not None:
            return parse(found.value)
        if hint is Path or hint == Path | None:
            return Path(msgspec.convert(found.value, str)).expanduser()
        if hint is Secret or hint == Secret | None:
            return Secret(msgspec.convert(found.value, str))
        return msgspec.convert(found.value, hint, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{backend} option {field.name} = {_show(found, field)} from {found.source}: {error} ({field.metadata['doc']})"
        ) from error


def _show(setting: Setting, field: dataclasses.Field[object]) -> str:
    return "'***'" if "Secret" in str(field.type) else repr(setting.value)


def _unknown(setting: Setting, backend: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(setting.name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(set(names.values())))}"
    return f"{backend} has no option {setting.name!r} (from {setting.source}); {hint}"
