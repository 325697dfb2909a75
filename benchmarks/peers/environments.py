"""Which peers there are, how to make their environments, and how to start their drivers."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.project import offer_project
from benchmarks.subjects.process import ProcessSubject

FOLDER = Path(__file__).resolve().parent
TORCH = "torch==2.13.0"
_STAMP = "installed.txt"
_VLLM_PARTS = ("vllm/v1/kv_offload/tiering/fs/io.py", "vllm/fs_io_C.abi3.so")
_VLLM_STAND_INS = (
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libc10.so",
    "libc10_cuda.so",
    "libnvrtc.so.13",
)


@dataclass(frozen=True, slots=True)
class Peer:
    """One project with an environment of its own.

    Attributes:
        name: its folder under benchmarks/peers and the prefix of its subjects.
        requirement: the pinned package.
        variants: subject name -> arguments of its driver.
        finish: what is left to do once `requirements.txt` is installed.
        needs_torch: whether torch is installed first.
    """

    name: str
    requirement: str
    variants: dict[str, tuple[str, ...]]
    finish: Callable[[Peer], None]
    needs_torch: bool = True

    @property
    def venv(self) -> Path:
        return FOLDER / self.name / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def recipe(self) -> str:
        """Changes when the environment has to be made anew."""
        requirements = (FOLDER / self.name / "requirements.txt").read_bytes()
        return hashlib.sha256(requirements + f"{self.requirement} {TORCH}".encode()).hexdigest()

    @property
    def is_installed(self) -> bool:
        stamp = self.venv / _STAMP
        return stamp.is_file() and stamp.read_text() == self.recipe

    def install(self) -> None:
        """Make the environment; does nothing if it is there already."""
        if self.is_installed:
            return
        shutil.rmtree(self.venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True)
        if self.needs_torch:
            self.pip("install", TORCH)
        self.pip("install", *([TORCH] if self.needs_torch else []), "-r", str(FOLDER / self.name / "requirements.txt"))
        self.finish(self)
        (self.venv / _STAMP).write_text(self.recipe)

    def pip(self, *arguments: str) -> None:
        subprocess.run(
            [str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments],
            check=True,
            stdout=sys.stderr,
        )

    def start(self, subject: str, tree: Path, server: Sequence[str] = ()) -> ProcessSubject:
        """Start the driver of *subject*.

        Args:
            tree: holds a link to the harness and takes the driver's log.
            server: where the server is that it uses, in the words of its driver.
        """
        command = [str(self.python), "-m", f"benchmarks.peers.{self.name}.driver", *self.variants[subject], *server]
        if self.name == "sglang":
            offer_project(tree)
        log = tree / f"{subject}.log"
        return ProcessSubject(command, cwd=tree, environ=self.environ(), log=log)

    def environ(self) -> dict[str, str]:
        """Return the whole environment of a process of this peer."""
        environ = os.environ | {"HF_HUB_OFFLINE": "1", "LMCACHE_TRACK_USAGE": "false"}
        if self.name == "sglang":
            environ["PATH"] = os.pathsep.join((str(self.venv / "bin"), environ["PATH"]))
            environ["PYTHONPATH"] = f"{self.venv / 'src'}:{FOLDER / 'sglang' / 'stand_ins'}"
            environ["TORCH_EXTENSIONS_DIR"] = str(self.venv / "extensions")
            # Nothing here is compiled by torch, and importing the compiler takes as long as SGLang itself.
            environ["TORCHDYNAMO_DISABLE"] = "1"
        if self.name == "vllm":
            environ["PYTHONPATH"] = str(self.venv / "src")
            environ["LD_LIBRARY_PATH"] = str(self.venv / "stand_ins")
        return environ


def _fetch_wheel(peer: Peer, wanted: Callable[[str], bool]) -> Path:
    """Unpack the wanted members of the peer's wheel into ``.venv/src`` and return that folder."""
    wheels, src = peer.venv / "wheels", peer.venv / "src"
    peer.pip("download", "--no-deps", "--dest", str(wheels), peer.requirement)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(src, [name for name in archive.namelist() if wanted(name)])
    shutil.rmtree(wheels)
    return src


def _finish_sglang(peer: Peer) -> None:
    """Unpack the wheel, and compile its page-hash extension: several processes that start at once would each do it.

    Raises:
        RuntimeError: the machine has no C++ compiler or none of OpenSSL's headers.
    """
    _fetch_wheel(peer, lambda name: name.startswith("sglang/"))
    hash_one_page = "from sglang.srt.mem_cache.cpp_utils.native_hash import get_native_hash as h; h([1, 2], None)"
    done = subprocess.run(
        [str(peer.python), "-c", hash_one_page], env=peer.environ(), check=False, capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-20:]
        raise RuntimeError("\n".join(("SGLang's page hash does not compile; it needs g++ and libssl-dev", *lines)))


def _finish_lmcache(peer: Peer) -> None:
    peer.pip("install", "--no-deps", peer.requirement)


def _finish_vllm(peer: Peer) -> None:
    """Take the two files of the tier out of the wheel, and let the compiled one load without torch.

    It names torch and CUDA libraries as dependencies but takes no symbol from them, so empty
    libraries of those names are enough. Without a C compiler only the Python path can be measured.
    """
    src = _fetch_wheel(peer, lambda name: name in _VLLM_PARTS)
    shutil.move(src / _VLLM_PARTS[0], src / "io.py")
    shutil.rmtree(src / "vllm" / "v1")
    (src / "vllm" / "__init__.py").write_text("")
    stand_ins = peer.venv / "stand_ins"
    stand_ins.mkdir()
    compiler = shutil.which("cc")
    for name in _VLLM_STAND_INS if compiler else ():
        command = [str(compiler), "-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{name}", "-o", str(stand_ins / name)]
        subprocess.run(command, check=True)


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "sglang",
            "sglang==0.5.23",
            {
                "sglang": ("exists",),
                "sglang_v2": ("exists_v2",),
                "sglang_cpu_copy": ("cpu_copy",),
                "sglang_data_page": ("data_page",),
                "sglang_tree": ("classic",),
                "sglang_tree_python": ("python",),
                "sglang_tree_rust": ("rust",),
                "sglang_file": ("controller", "file"),
                "sglang_bare": ("controller", "bare"),
                "sglang_ours": ("controller", "ours"),
            },
            _finish_sglang,
        ),
        Peer(
            "lmcache",
            "lmcache==0.5.6",
            {
                "lmcache_fs": ("fs",),
                "lmcache_fs_native": ("fs_native",),
                "lmcache_resp": ("resp",),
                "lmcache_s3": ("s3",),
            },
            _finish_lmcache,
        ),
        Peer(
            "vllm",
            "vllm==0.33.0",
            {"vllm_fs": (str(FOLDER / "vllm" / ".venv" / "src" / "io.py"),)},
            _finish_vllm,
            needs_torch=False,
        ),
    )
}


def peer_of(subject: str) -> Peer:
    """Return the peer whose driver runs *subject*."""
    return next(peer for peer in PEERS.values() if subject in peer.variants)


def select(wanted: str) -> list[str]:
    """Return the names of peers: ``auto`` = those installed, ``none``, or a list with commas.

    Raises:
        ValueError: an unknown peer, or one that is not installed.
    """
    if wanted == "none":
        return []
    if wanted == "auto":
        return [name for name, peer in PEERS.items() if peer.is_installed]
    names = wanted.split(",")
    for name in names:
        if name not in PEERS:
            raise ValueError(f"no peer {name!r}; there are {', '.join(PEERS)}")
        if not PEERS[name].is_installed:
            raise ValueError(f"peer {name} is not installed: python -m benchmarks peers install {name}")
    return names


def install(names: Sequence[str]) -> None:
    """Make the environments of *names*, or of every peer."""
    for name in names or PEERS:
        print(f"peer {name}: {PEERS[name].requirement}", file=sys.stderr)
        PEERS[name].install()
