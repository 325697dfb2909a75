"""Loads kernels so that they run here: compiled where there is a GPU, else in Triton's interpreter.

Triton decides which when a kernel is defined. The environment is changed only meanwhile: no other test, and no
process that one starts, sees TRITON_INTERPRET.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch

KERNEL_MODULES = (
    "hicache_storage.kernels.addressing",
    "hicache_storage.kernels.gather_pages.triton_kernel",
    "hicache_storage.kernels.scatter_pages.triton_kernel",
)


def require_triton() -> None:
    """Skip where there is no Triton to install; fail where it is merely missing."""
    if importlib.util.find_spec("triton") is not None:
        return
    if sys.platform == "linux" and platform.machine() == "x86_64":
        pytest.fail("triton is not installed: the `engine` extra has it on this platform")
    pytest.skip(f"there is no triton for {sys.platform} on {platform.machine()}")


def load_kernels() -> None:
    """Define the shipped kernels."""
    with _kernels_run_here():
        for name in KERNEL_MODULES:
            importlib.import_module(name)


def module(name: str) -> ModuleType:
    """Return a loaded module below ``hicache_storage.kernels``; an attribute of that name may be a function."""
    return sys.modules[f"hicache_storage.kernels.{name}"]


def load_source(source: str, path: Path) -> ModuleType:
    """Return the module *source*, written to *path*: Triton reads a kernel's text from its file."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _kernels_run_here():
        spec.loader.exec_module(module)
    return module


@contextmanager
def _kernels_run_here() -> Iterator[None]:
    # Triton's own functions must be defined in the environment in which it is used later.
    importlib.import_module("triton.language")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
        yield


def shipped_source(name: str) -> str:
    """Return the source of a module below ``hicache_storage.kernels``."""
    spec = importlib.util.find_spec(f"hicache_storage.kernels.{name}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()
