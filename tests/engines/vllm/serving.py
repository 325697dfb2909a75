"""Stock vLLM as it is served, in a process of its own, and what the tests ask it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import msgspec

from hicache_storage.testing.services.seaweedfs import SeaweedFS
from hicache_storage.watchdog import watchdog
from tests.engines.vllm.environment import ENVIRONMENT

BLOCK_TOKENS = 32
_START_WITHIN_S = 300.0
_ANSWER_WITHIN_S = 120.0
_END_WITHIN_S = 120.0
_SHARED_MEMORY = Path("/dev/shm")

Adapter: TypeAlias = tuple[str, int, str]
"""Name, number and folder of a LoRA adapter."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one prompt.

    Attributes:
        cached: prompt tokens that were not computed.
        elapsed_s: of all prompts that were asked together.
    """

    tokens: tuple[int, ...]
    cached: int
    elapsed_s: float


class _Answers(msgspec.Struct):
    tokens: list[list[int]]
    cached: list[int]
    elapsed_s: float


def connector(options: dict[str, object]) -> dict[str, object]:
    """Return what ``--kv-transfer-config`` says for a connector with *options*."""
    return {
        "kv_connector": "HiCacheConnector",
        "kv_connector_module_path": "hicache_storage.engine_integration.adapters.vllm.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": options,
    }


def s3_options(server: SeaweedFS) -> dict[str, object]:
    """Return the connector's options for a bucket of *server*."""
    extra = {
        "bucket": "pages",
        "create_bucket": True,
        "endpoint_url": server.endpoint_url,
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
    }
    return {"backend": "s3", "extra_config": extra}


def rendezvous_of(folder: Path) -> set[str]:
    """Return the names under which ranks have met whose temporary files are in *folder*; no two engines share one."""
    return {path.name for path in folder.glob("vllm_dist_*")}


def remove_shared_memory(names: set[str], folder: Path = _SHARED_MEMORY) -> None:
    """Remove what the ranks of these rendezvous have left in shared memory: vLLM's ranks on a CPU never do."""
    for name in names:
        for path in folder.glob(f"{name}-*"):
            path.unlink(missing_ok=True)


class Serving:
    """An engine in a process of its own, up when entered, shut down when left. Leaves no files and no processes.

    Args:
        model: a safetensors folder.
        transfer: what ``--kv-transfer-config`` says; None = no connector.
        settings: vLLM's own, by the names of its Python interface.
    """

    def __init__(self, model: Path, transfer: dict[str, object] | None, **settings: object) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hicache-vllm-")
        self._log = Path(self._folder.name) / "log"
        chosen = {"dtype": "float32", "max_model_len": 1280, "block_size": BLOCK_TOKENS, "max_num_seqs": 4}
        if transfer is not None:
            chosen["kv_transfer_config"] = transfer
        self._settings = chosen | settings
        self._model = model

    def __enter__(self) -> Self:
        tree = Path(self._folder.name) / "tree"
        environ = ENVIRONMENT.environ(tree)
        self._temporary = Path(environ["TMPDIR"])
        self._rendezvous: set[str] = set()
        command = [str(ENVIRONMENT.python), "-m", "tests.engines.vllm.served", str(self._model)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, json.dumps(self._settings)],
                cwd=tree,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            assert self._reply(_START_WITHIN_S) == {"ready": True}
            self._rendezvous = rendezvous_of(self._temporary)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert self._process.stdin is not None
                self._process.stdin.close()
                assert self._reply(_ANSWER_WITHIN_S) == {"ended": True}
                self._process.wait(_END_WITHIN_S)
        finally:
            self._kill()

    @property
    def log(self) -> str:
        """What the engine has logged."""
        return self._log.read_text(errors="replace")

    def ask(
        self, prompt: Sequence[int], max_tokens: int = 8, adapter: Adapter | None = None, **inputs: object
    ) -> Answer:
        """Return the greedy continuation of *prompt*."""
        return self.ask_all([prompt], max_tokens, adapter, **inputs)[0]

    def ask_all(
        self, prompts: Sequence[Sequence[int]], max_tokens: int = 8, adapter: Adapter | None = None, **inputs: object
    ) -> list[Answer]:
        """Return the greedy continuations of prompts that are served side by side."""
        order = {"prompts": list(map(list, prompts)), "max_tokens": max_tokens, "adapter": adapter, "inputs": inputs}
        found = msgspec.convert(self._order(order), _Answers)
        pairs = zip(found.tokens, found.cached, strict=True)
        return [Answer(tuple(tokens), cached, found.elapsed_s) for tokens, cached in pairs]

    def forget(self) -> None:
        """Let the engine forget the KV that it keeps itself."""
        assert self._order({"forget": True}) == {"forgotten": True}

    def reset(self) -> None:
        """Let the engine forget the KV that it keeps itself, and its connector's store too, as for other weights."""
        assert self._order({"reset": True}) == {"reset": True}

    def settle(self) -> None:
        """Wait until the worker has stored what it had to."""
        assert self._order({"settle": True}) == {"settled": True}

    def counts(self) -> dict[str, int]:
        """Return what the worker has counted."""
        return msgspec.convert(self._order({"count": True}), dict[str, int])

    def _order(self, order: dict[str, object]) -> dict[str, object]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._reply(_ANSWER_WITHIN_S)

    def _reply(self, within_s: float) -> dict[str, object]:
        assert self._process.stdout is not None
        with watchdog(within_s, self._kill_group):
            line = self._process.stdout.readline()
        assert line, f"the engine ended, or was killed after {within_s} s:\n{self.log[-6000:]}"
        reply: dict[str, object] = json.loads(line)
        return reply

    def _kill_group(self) -> None:
        """Kill the engine and its ranks, which may hold its pipes: it leads a group of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _kill(self) -> None:
        self._kill_group()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        remove_shared_memory(self._rendezvous | rendezvous_of(self._temporary))
        self._folder.cleanup()
