"""A subject behind a pipe: one JSON request a line on stdin, one JSON answer a line on stdout.

    {"call": "prepare", "workload": {...}}   {"call": "run", "operation": "read"}   {"call": "release"}

Runs inside a peer's environment, so it uses the standard library only. What the peer prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import TextIO

from benchmarks.subject import Subject


def serve(subject: Subject) -> None:
    """Answer requests about *subject* until stdin ends."""
    answers = _claim_stdout()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": _perform(subject, request)}
        except Exception as error:  # noqa: BLE001 - the harness reports it with the peer's name
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _claim_stdout() -> TextIO:
    """Keep the pipe for answers and send everything else that is printed to stderr."""
    pipe = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(pipe, "w", encoding="utf-8")


def _perform(subject: Subject, request: dict[str, object]) -> object:
    match request:
        case {"call": "prepare", "workload": dict(fields)}:
            subject.prepare(subject.workload_kind(**fields))
            return {"version": subject.version, "calls": subject.calls}
        case {"call": "run", "operation": str(operation)}:
            return subject.run(operation)
        case {"call": "clear_memory" | "wipe" | "release" as name}:
            getattr(subject, name)()
            return None
        case {"call": "wrong_objects"}:
            return subject.wrong_objects()
        case {"call": "store_some", "numbers": list(numbers)}:
            subject.store_some(numbers)
            return None
        case {"call": "fetch_some", "numbers": list(numbers)}:
            return [verdict.value for verdict in subject.fetch_some(numbers)]
        case {"call": "die_at_file_size", "nbytes": int(nbytes)}:
            _die_at_file_size(nbytes)
            return None
    msg = f"no such request: {request}"
    raise ValueError(msg)


def _die_at_file_size(nbytes: int) -> None:
    """Let the kernel kill this process, without any cleaning up, when a file grows past *nbytes*."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
