"""A subject in a process of its own, spoken to over a pipe."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from benchmarks.subject import Subject, SubjectFailed, Verdict
from benchmarks.workload import Workload
from hicache_storage.watchdog import watchdog

_ANSWER_S = 300.0


class ProcessSubject(Subject):
    """Forwards every call to a process that runs `benchmarks.serve`.

    Args:
        command: starts the process; its stdout must be the pipe of answers.
        cwd: where it runs.
        environ: its whole environment.
        log: file that takes its stderr.
    """

    def __init__(self, command: Sequence[str], *, cwd: Path, environ: dict[str, str], log: Path) -> None:
        self.calls = {}
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def prepare(self, workload: Workload) -> None:
        answer = self._ask(call="prepare", workload=asdict(workload))
        match answer:
            case {"version": str(version), "calls": dict(calls)}:
                self.version, self.calls = version, calls
            case _:
                raise SubjectFailed(f"unexpected answer {answer!r}")

    def write(self) -> float:
        return self.run("write")

    def read(self) -> float:
        return self.run("read")

    def exists(self) -> float:
        return self.run("exists")

    def run(self, operation: str) -> float:
        return float(str(self._ask(call="run", operation=operation)))

    def clear_memory(self) -> None:
        self._ask(call="clear_memory")

    def wrong_objects(self) -> int:
        return int(str(self._ask(call="wrong_objects")))

    def wipe(self) -> None:
        self._ask(call="wipe")

    def store_some(self, numbers: Sequence[int]) -> None:
        self._ask(call="store_some", numbers=list(numbers))

    def fetch_some(self, numbers: Sequence[int]) -> list[Verdict]:
        answer = self._ask(call="fetch_some", numbers=list(numbers))
        return [Verdict(value) for value in answer] if isinstance(answer, list) else []

    def die_at_file_size(self, nbytes: int) -> None:
        """From now on the kernel kills the process when it lets a file grow past *nbytes*."""
        self._ask(call="die_at_file_size", nbytes=nbytes)

    def release(self) -> None:
        self._ask(call="release")

    def close(self) -> None:
        """End the process, whatever state it is in; a second call does nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, **request: object) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with watchdog(_ANSWER_S, self._process.kill), suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise SubjectFailed(f"process ended with {code} during {request['call']}; its log ends: {self._log_tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise SubjectFailed(f"{request['call']}: {answer['error']}")
        return answer["result"]

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace").strip()[-400:] or "(nothing)"
