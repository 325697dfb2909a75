"""The command line in this process, and stores for it to look at."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_storage.cli.main import main
from tests.cli.deployment import Deployment, deploy
from tests.cli.running import Ended, Hicache


@pytest.fixture
def hicache(capsys: pytest.CaptureFixture[str]) -> Hicache:
    """Runs ``hicache ARGUMENTS`` in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        try:
            status = main(list(arguments))
        except SystemExit as left:
            status = int(str(left.code))
        out, err = capsys.readouterr()
        return Ended(status, out, err)

    return run


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A deployment that nobody may change."""
    return deploy(tmp_path_factory.mktemp("planted") / "kv")


@pytest.fixture
def deployment(planted: Deployment, tmp_path: Path) -> Deployment:
    """Three pages of four objects each, and their namespace's description, for this test alone."""
    return dataclasses.replace(planted, root=shutil.copytree(planted.root, tmp_path / "kv"))


@pytest.fixture
def scripted(deployment: Deployment) -> Callable[[str], list[str]]:
    """Gives the flags that name the deployment's store with scripted faults."""

    def flags(script: str) -> list[str]:
        options = json.dumps({"path": str(deployment.root), "script": script})
        return ["--store", "tests.cli.stores:ScriptedStore", "--hicache-storage-backend-extra-config", options]

    return flags
