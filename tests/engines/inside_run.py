"""``python -m tests.engines.inside_run FILE [pytest options]``: SGLang's tests as the suite runs them, output as it comes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.environments import PEERS
from tests.engines.inside import inside_command
from tests.engines.sglang.conftest import PLUGINS


def main(arguments: list[str]) -> int:
    """Return pytest's exit status; the environment is made if it is not there."""
    peer = PEERS["sglang"]
    peer.install()
    with tempfile.TemporaryDirectory(prefix="hicache-inside-") as folder:
        paths = [str(Path(argument).resolve()) if Path(argument).exists() else argument for argument in arguments]
        command, environ = inside_command(peer, Path(folder), paths, PLUGINS)
        return subprocess.run(command, cwd=folder, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
