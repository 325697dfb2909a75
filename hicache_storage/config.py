"""Options: where each value came from, what is wrong with it, and what would be right.

Every backend declares a frozen dataclass of options with `option()`. A deployment names a backend
by name, URL or ``module:Class`` and may add a JSON object, ``@file`` (JSON, YAML or TOML) and
environment variables. `resolve` merges them; the first source that has a value wins:

    URL  >  extra config  >  HICACHE_<BACKEND>_<OPTION>  >  names of other projects in the environment  >  default

URL and extra config belong to one call and may repeat, but not contradict, each other. An environment
variable that is set to nothing counts as not set. This is the only module that reads the environment.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import msgspec

from hicache_storage.errors import ConfigError

T = TypeVar("T")

_MAX_CONFIG_NBYTES = 1 << 20
_MAX_SHOWN_CHARS = 200
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}{tail}": 1000**power for power, letter in enumerate("kmgtp", 1) for tail in ("", "b")}
_UNITS |= {f"{letter}i{tail}": 1024**power for power, letter in enumerate("kmgtp", 1) for tail in ("", "b")}


class Secret:
    """Text that prints as ``***``; `reveal` gives the value to the SDK that needs it.

    It is no ``str``: JSON encoders, ``"".join`` and ``+`` would take a string's value past any mask.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._value)

    def reveal(self) -> str:
        return self._value


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One option's value and the source that gave it, for error messages and `hicache doctor`.

    Its ``repr`` leaves the value out: until it is parsed nobody knows whether it is a secret.
    """

    name: str
    value: object = dataclasses.field(repr=False)
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
        doc: what it means, with the unit; shown where the value is wrong or missing.
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
    return int(Fraction(match[1]) * _UNITS[match[2].lower()])


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """Return a parser of whole numbers in ``[least, most]``, from ``8`` or ``"8"``."""

    def parse(value: object) -> int:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return number

    return parse


def parse_seconds(value: object) -> float:
    """Return a number of seconds, ``> 0``, from ``5``, ``0.5`` or ``"5"``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected seconds")  # noqa: TRY004 - resolve turns ValueError into ConfigError
    seconds = float(value)
    if not 0 < seconds < float("inf"):
        raise ValueError("expected seconds above 0")
    return seconds


def check_fields(options: object, backend: str) -> None:
    """Parse every field of an options dataclass in place, so that one built by hand is checked as one from a file.

    For ``__post_init__``. A field that is None is left alone.

    Raises:
        ConfigError: a value does not fit.
    """
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        parse, value = field.metadata["parse"], getattr(options, field.name)
        if parse is None or value is None:
            continue
        try:
            object.__setattr__(options, field.name, parse(value))
        except ValueError as error:
            reason = f"{backend} option {field.name} = {value!r}: {error} ({field.metadata['doc']})"
            raise ConfigError(reason) from error


def load_extra_config(text: str, source: str = "extra config") -> dict[str, Setting]:
    """Read ``--hicache-storage-backend-extra-config``: a JSON object, or ``@file`` in JSON, YAML or TOML.

    Args:
        source: where *text* comes from, for provenance; a file is its own source.

    Raises:
        ConfigError: it does not parse, is not an object, or is over 1 MiB.
    """
    if not text.startswith("@"):
        return _as_settings(_decode(text.encode("utf-8", "surrogateescape"), "json", source), source)
    path = Path(text[1:])
    suffix = path.suffix.lower().lstrip(".")
    if suffix not in ("json", "yaml", "yml", "toml"):
        raise ConfigError(f"{source} {path}: expected a .json, .yaml, .yml or .toml file")
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONFIG_NBYTES + 1)
    except OSError as error:
        raise ConfigError(f"{source} {path} cannot be read: {error.strerror}") from error
    return _as_settings(_decode(data, suffix, str(path)), str(path))


def from_environment(section: str, name: str, environ: Mapping[str, str] | None = None) -> Setting | None:
    """Return the variable ``HICACHE_<SECTION>_<NAME>`` as a setting; None if it is not set, or set to nothing."""
    environ = os.environ if environ is None else environ
    variable = _variable(section, name)
    return Setting(name, environ[variable], f"environment variable {variable}") if environ.get(variable) else None


def refuse_unknown_variables(
    section: str, known: Sequence[str], others: Sequence[str], environ: Mapping[str, str] | None = None
) -> None:
    """Return if every variable ``HICACHE_<SECTION>_...`` is one of the *known* options.

    Args:
        others: sections whose variables are none of ours, although their names may begin with this section's.

    Raises:
        ConfigError: one is not: a mistyped option must not be without effect.
    """
    environ = os.environ if environ is None else environ
    own, names = _variable(section, ""), {_variable(section, name) for name in known}
    foreign = tuple(prefix for prefix in (_variable(other, "") for other in others) if len(prefix) > len(own))
    for variable, value in environ.items():
        if value and f"{variable}_".startswith(own) and variable not in names and not variable.startswith(foreign):
            setting = Setting(variable[len(own) :].lower(), None, f"environment variable {variable}")
            raise ConfigError(_unknown(setting, section, {name: name for name in known}))


def rank_name(environ: Mapping[str, str] | None = None) -> str:
    """Return what this process is called among the ranks of its engine, such as ``tp1pp0``; empty if it is no rank."""
    environ = os.environ if environ is None else environ
    return environ.get("HICACHE_RANK", "")


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return where this package keeps what can be made again: ``$XDG_CACHE_HOME``, else ``~/.cache``, / ``hicache_storage``."""
    environ = os.environ if environ is None else environ
    # Unlike Path.home() this does not raise for a user without a home, who may well name another folder.
    home = os.path.expanduser("~")  # noqa: PTH111
    return Path(environ.get("XDG_CACHE_HOME") or f"{home}/.cache") / "hicache_storage"


def from_mapping(values: Mapping[str, object], source: str) -> dict[str, Setting]:
    """Return *values* as settings that came from *source*."""
    return {name: Setting(name, value, source) for name, value in values.items()}


def resolve(
    options_type: type[T],
    backend: str,
    sources: Sequence[Mapping[str, Setting]],
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
    hints = typing.get_type_hints(options_type)
    given: dict[str, Setting] = {}
    for setting in (setting for source in sources for setting in source.values()):
        name = names.get(setting.name)
        if name is None:
            raise ConfigError(_unknown(setting, backend, names))
        parsed = Setting(name, _parse(setting, fields[name], hints[name], backend), setting.source)
        first = given.setdefault(name, parsed)
        if first.value != parsed.value:
            raise ConfigError(
                f"{backend} option {name} is given twice: {_shown(first.value)} in {first.source} "
                f"and {_shown(parsed.value)} in {parsed.source}"
            )
    provenance = [
        given.get(name) or _without_source(field, hints[name], backend, environ) for name, field in fields.items()
    ]
    values = {setting.name: setting.value for setting in provenance}
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
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply") from None
    except ImportError as error:
        raise ConfigError(f"{source}: YAML needs PyYAML: pip install 'hicache-storage[yaml]'") from error


def _as_settings(value: object, source: str) -> dict[str, Setting]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f'{source}: expected an object of options, such as {{"path": "/mnt/kv"}}')
    return from_mapping(value, source)


def _without_source(
    field: dataclasses.Field[object], hint: object, backend: str, environ: Mapping[str, str]
) -> Setting:
    """Return the setting of an option that no source of the call has: the environment's or the default."""
    for variable in (_variable(backend, field.name), *field.metadata["env"]):
        if environ.get(variable):
            found = Setting(field.name, environ[variable], f"environment variable {variable}")
            return Setting(field.name, _parse(found, field, hint, backend), found.source)
    if field.default is dataclasses.MISSING:
        raise ConfigError(f"{backend} option {field.name} is required: {field.metadata['doc']}")
    return Setting(field.name, field.default, "default")


def _variable(section: str, name: str) -> str:
    return re.sub(r"\W", "_", f"HICACHE_{section}_{name}").upper()


def _parse(found: Setting, field: dataclasses.Field[object], hint: object, backend: str) -> object:
    kinds = _kinds(hint)
    try:
        return _converted(found.value, field.metadata["parse"], hint, kinds)
    except msgspec.ValidationError:
        reason = f"expected {' or '.join(map(_looks, kinds))}"
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error)
    value = "'***'" if Secret in kinds else _shown(found.value)
    raise ConfigError(
        f"{backend} option {field.name} = {value} from {found.source}: {reason} ({field.metadata['doc']})"
    )


def _converted(
    value: object, parse: Callable[[object], object] | None, hint: object, kinds: tuple[object, ...]
) -> object:
    if value is None and types.NoneType in kinds:
        return None
    if parse is not None:
        return parse(value)
    if Path in kinds:
        return _path(value)
    if Secret in kinds:
        return Secret(msgspec.convert(value, str))
    converted: object = msgspec.convert(value, hint, strict=False)
    if isinstance(converted, float) and math.isnan(converted):
        raise ValueError("expected a number")
    return converted


def _path(value: object) -> Path:
    text = str(value) if isinstance(value, Path) else msgspec.convert(value, str)
    if not text or "\0" in text:
        raise ValueError("expected a path that is not empty and has no NUL in it")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _kinds(hint: object) -> tuple[object, ...]:
    """Return the members of a union, or the hint itself."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


_LOOKS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    Secret: "text",
    types.NoneType: "null",
}


def _looks(kind: object) -> str:
    """Return what a value of the type *kind* looks like, for whoever has to type one."""
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    return _LOOKS.get(kind, str(kind))


def _shown(value: object) -> str:
    """Return a value for an error message, cut where it is long; a `Secret` masks itself."""
    text = repr(str(value)) if isinstance(value, Path) else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def _unknown(setting: Setting, backend: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(setting.name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(set(names.values())))}"
    return f"{backend} has no option {setting.name!r} (from {setting.source}); {hint}"
