"""The module of docs/debugging.md that plants a fault in every rank which uses ``planted:FileStore``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

PAGE = ROOT / "docs" / "debugging.md"


def plant(fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every rank that is started from now on find the module in *folder*, and *fault* in it; "" is none."""
    module = re.search(r"cat > planted\.py <<'END'\n(.*?)^END$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert module is not None
    (folder / "planted.py").write_text(module[1])
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FAULT", fault)
