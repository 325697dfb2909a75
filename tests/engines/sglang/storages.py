"""The storage backends that are compared, in the words of SGLang's command line, and damage done to what they keep."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from hicache_storage.engine_integration.adapters import sglang as adapter
from tests.engines.sglang.stack import Storage

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct")


def ours(folder: Path, layout: str = "page_first", options: Mapping[str, object] | None = None) -> Storage:
    """Return this project's adapter on the file backend in *folder*; *options* as on SGLang's command line."""
    extra = {
        "backend_name": "hicache_storage",
        "module_path": adapter.__name__,
        "class_name": adapter.HiCacheUnified.__name__,
        "interface_v1": 1,
        "backend": "file",
        "extra_config": {"path": str(folder)},
    }
    return Storage(backend="dynamic", extra={**extra, **(options or {})}, layout=layout)


def stock(folder: Path, layout: str = "page_first") -> Storage:
    """Return SGLang's own file backend in *folder*."""
    return Storage(backend="file", extra={"file_storage_path": str(folder)}, layout=layout)


def objects(folder: Path, page_hash: str = "") -> list[Path]:
    """Return the files that hold objects, or those of one page, in order of their names."""
    found = (path for path in folder.rglob(f"{page_hash}*") if path.is_file())
    return sorted(path for path in found if len(path.name.split("_")[0].split(".")[0]) == 64)


def _flip(victim: Path, _: Path) -> None:
    content = bytearray(victim.read_bytes())
    content[len(content) // 3] ^= 0x10
    victim.write_bytes(content)


def _truncate(victim: Path, _: Path) -> None:
    content = victim.read_bytes()
    victim.write_bytes(content[: len(content) // 2])


def _lengthen(victim: Path, _: Path) -> None:
    victim.write_bytes(victim.read_bytes() + b"\x5a" * 64)


def _zero(victim: Path, _: Path) -> None:
    content = victim.read_bytes()
    half = len(content) // 2
    victim.write_bytes(content[:half] + bytes(len(content) - half))


def _swap(victim: Path, other: Path) -> None:
    shutil.copyfile(other, victim)


DAMAGES: dict[str, Callable[[Path, Path], None]] = {
    "bit flip": _flip,
    "truncated": _truncate,
    "too long": _lengthen,
    "second half zero": _zero,
    "another page's object": _swap,
}
"""Name -> what happens to a file; the second path is that of another page's object."""
