"""examples/sglang_gpu/check.py judges servers rightly. Real ones need GPUs; here a script answers in their place."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hicache_storage.testing.services.process import ReservedPort
from tests.architecture.source import ROOT

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

tp = sys.argv[sys.argv.index("--tp-size") + 1]
port = int(sys.argv[sys.argv.index("--port") + 1])
extra = sys.argv[-1] if "dynamic" in sys.argv else None
store = Path(json.loads(extra)["backend"].removeprefix("file://")) / "objects" if extra else None
seen = set()

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self): self.reply(b"ok")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/flush_cache":
            seen.clear()
            return self.reply(b"ok")
        self.reply(b"data: " + json.dumps(self.answer(body["text"])).encode() + b"\\n\\ndata: [DONE]\\n\\n")
    def answer(self, text):
        number, cached, wrong = text.split(".")[0].split()[1], 0, False
        if store:
            found = store / number
            if found.exists() and text not in seen:
                is_whole = found.read_bytes() == b"stored"
                cached, wrong = 128 if is_whole or BLIND else 0, BLIND and not is_whole
            store.mkdir(parents=True, exist_ok=True)
            found.write_bytes(b"stored")
        seen.add(text)
        said = "garbage" if wrong else f"answer of tp{tp} to {number}"
        details = {"device": 0, "storage": cached}
        return {"text": said, "meta_info": {"prompt_tokens": 130, "cached_tokens_details": details}}
    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def port() -> ReservedPort:
    return ReservedPort()


@pytest.fixture
def example(port: ReservedPort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("sglang_gpu_check", ROOT / "examples" / "sglang_gpu" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PORT", port.number)
    monkeypatch.chdir(tmp_path)
    return module


def arguments(folder: Path, *, blind: bool) -> list[str]:
    """Return a command line for a server that looks at what it reads, or that believes everything."""
    script = folder / "server.py"
    script.write_text(SERVER.replace("BLIND", str(blind)))
    return [
        *("--model", "none", "--store", f"file://{folder / 'store'}", "--writer-tp", "2", "--reader-tp", "1", "2"),
        *("--prompts", "4", "--words", "10", "--launch", f"{sys.executable} {script}"),
    ]


def test_servers_that_do_right_pass(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(arguments(tmp_path, blind=False)) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["ok"] * 6
    assert "2 objects damaged" in lines[-1]


def test_a_server_that_believes_damaged_objects_is_found_out(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.main(arguments(tmp_path, blind=True)) == 1

    assert "2 of 4 texts differ" in capsys.readouterr().out.splitlines()[-1]
