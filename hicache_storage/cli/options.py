"""Flags that several commands share, under the names that SGLang uses."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import textwrap
from collections.abc import Sequence

from hicache_storage.cli.foreign import open_store_of
from hicache_storage.registry import ResolvedStore, default_backend, default_extra_config, resolve_store
from hicache_storage.store import ObjectStore


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    *,
    summary: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Return the parser of a new command; *examples* are command lines and end its help as they are."""
    lines = examples.splitlines()
    title = "example" if len(lines) == 1 else "examples"
    return commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(description, shutil.get_terminal_size().columns - 2),
        epilog="\n  ".join([f"{title}:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_option_flag(
    group: argparse._ArgumentGroup, field: dataclasses.Field[object], names: Sequence[str], *, deniable: bool = False
) -> None:
    """Add the flag of one field of an options dataclass; absent means None, so that other sources can be asked.

    Args:
        names: what the flag is called, with underscores.
        deniable: a switch that is off by default has a ``--no-`` form too.
    """
    flags = [f"--{name.replace('_', '-')}" for name in names]
    default = "" if field.default in (None, False) else f" (default: {field.default})"
    help_text = (field.metadata["doc"] + default).replace("%", "%%")
    if isinstance(field.default, bool):
        action = argparse.BooleanOptionalAction if field.default or deniable else "store_true"
        group.add_argument(*flags, dest=field.name, action=action, default=None, help=help_text)
    else:
        metavar = field.name.rsplit("_", 1)[-1].upper()
        group.add_argument(*flags, dest=field.name, default=None, metavar=metavar, help=help_text)


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a store."""
    group = parser.add_argument_group("store")
    group.add_argument(
        "--hicache-storage-backend",
        "--store",
        metavar="NAME|URL|module:Class",
        help="where the objects live: a registered name, a URL such as file:///mnt/kv, or a class of your own "
        "(default: $HICACHE_STORAGE_BACKEND, else file)",
    )
    group.add_argument(
        "--hicache-storage-backend-extra-config",
        metavar="JSON|@FILE",
        help='the backend\'s options as JSON, \'{"path": "/mnt/kv"}\', or a file in JSON, YAML or TOML '
        "(default: $HICACHE_STORAGE_BACKEND_EXTRA_CONFIG)",
    )


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def open_to_look(args: argparse.Namespace) -> ObjectStore:
    """Return the store that the flags name, open, for a command that only looks: a store that is not there is not made.

    Raises:
        ConfigError: as `store_target`.
        StoreUnavailable: there is no such store.
    """
    return open_store_of(store_target(args), looking=True)


def store_target(args: argparse.Namespace) -> ResolvedStore:
    """Return the store that the flags name, with every option worked out, not opened yet.

    Raises:
        ConfigError: no such backend, or an option is wrong.
    """
    extra = default_extra_config(args.hicache_storage_backend_extra_config)
    return resolve_store(default_backend(args.hicache_storage_backend), extra)
