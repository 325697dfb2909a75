"""A cheap name for the content of a model folder: other weights get another one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_SETTINGS = ("config.json", "adapter_config.json")
_OTHER_SETTINGS = ("params.json",)
_SAMPLES = 16
_SAMPLE_NBYTES = 64 << 10


def fingerprint(folder: Path) -> str | None:
    """Return 16 hex digits for the model or adapter in *folder*; None if there is none.

    Covers the settings, and of each file of weights its name, its size and sixteen samples of its bytes, the first and the
    last among them. Training changes weights everywhere, so another training has another fingerprint; a change of a
    few bytes may not.

    Raises:
        OSError: a file cannot be read.

    Cost: reads at most 1 MiB of each file.
    """
    weights = _weights(folder)
    if not weights:
        return None
    digest = hashlib.sha256()
    for path in [*_settings(folder), *weights]:
        for part in _parts(path, whole=path not in weights):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


def stamps(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return what changes when a file that `fingerprint` covers is written or replaced: nothing is read.

    Raises:
        OSError: the folder cannot be looked at.
    """
    found = [(path.name, path.stat()) for path in [*_settings(folder), *_weights(folder)] if path.is_file()]
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in found)


def _weights(folder: Path) -> list[Path]:
    return sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)})


def _settings(folder: Path) -> list[Path]:
    others = [folder / name for name in _OTHER_SETTINGS]
    return [*(folder / name for name in _SETTINGS), *(path for path in others if path.is_file())]


def _parts(path: Path, *, whole: bool) -> Iterator[bytes]:
    yield path.name.encode()
    if whole:
        yield path.read_bytes() if path.is_file() else b""
        return
    with path.open("rb") as file:
        nbytes = file.seek(0, 2)
        yield nbytes.to_bytes(8, "little")
        for sample in range(_SAMPLES):
            file.seek(max(nbytes - _SAMPLE_NBYTES, 0) * sample // (_SAMPLES - 1))
            yield file.read(_SAMPLE_NBYTES)
