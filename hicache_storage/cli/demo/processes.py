"""Fresh processes that get one job and give one answer, and never outlive the demo.

A child reads its job as one line of JSON from stdin and writes lines of JSON to stdout: any number of
progress lines, then its result or its failure. Stdin stays open as a sign of life: when it ends, the
parent is gone, and so is the child.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TextIO, TypeAlias, TypeVar

import msgspec

from hicache_storage import errors
from hicache_storage.errors import HiCacheError, RankFailure

T = TypeVar("T")
JobT = TypeVar("JobT")

_GRACE_S = 2.0
_LAST_WORDS_NBYTES = 4096
_END = ""

# Threads that spin while they wait take the cores of the ranks that compute; gloo finds its own
# address by name where no interface is given, which needs a resolver.
_RANK_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo"}


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """A line for the human."""

    text: str


class Result(msgspec.Struct, frozen=True, tag="result"):
    """What the child was started for, as JSON."""

    value: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The error that the child raised: its class in `hicache_storage.errors` and its message."""

    kind: str
    reason: str


Message: TypeAlias = Progress | Result | Failure


@dataclass(frozen=True, slots=True)
class Launch:
    """One process to start.

    Attributes:
        module: entry point, run with ``python -m``.
        job: its JSON goes to the child's stdin.
        label: names the process in messages.
        inherited: file descriptor that the child gets under the same number, None for none.
    """

    module: str
    job: msgspec.Struct
    label: str
    inherited: int | None = None


class _Child:
    """A running process and what it has said so far."""

    def __init__(self, launch: Launch, process: subprocess.Popen[str], log: IO[bytes], ear: threading.Thread) -> None:
        self.launch = launch
        self.process = process
        self.log = log
        self.ear = ear
        self.ended = False
        self.result: msgspec.Raw | None = None
        self.failure: HiCacheError | None = None
        self.death: str | None = None

    @property
    def failed(self) -> bool:
        return self.failure is not None or self.death is not None


def run_children(
    launches: Sequence[Launch],
    result_type: type[T],
    *,
    step: str,
    timeout_s: float,
    on_progress: Callable[[str], None],
) -> list[T]:
    """Run all of *launches* at once and return their results in order; none is left running.

    Args:
        step: names what they do together, in failures.

    Raises:
        HiCacheError: what a child raised, of the same class.
        RankFailure: a child died without saying why, or took longer than *timeout_s*.
    """
    children: list[_Child] = []
    lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    try:
        for index, launch in enumerate(launches):
            children.append(_start(index, launch, lines))
        _listen(children, lines, timeout_s, on_progress)
        _raise_first_failure(children, step)
        return [msgspec.json.decode(child.result or b"", type=result_type) for child in children]
    finally:
        for child in children:
            _stop(child)


def child_main(job_type: type[JobT], work: Callable[[JobT, Callable[[str], None]], msgspec.Struct]) -> int:
    """Do *work* on the job from stdin, answer on stdout, and return the exit status.

    *work* is called with the job and a function that reports progress.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints belongs into the log, not between the answers
    job = msgspec.json.decode(sys.stdin.readline(), type=job_type)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        result = work(job, lambda text: _answer(answers, Progress(text)))
    except HiCacheError as error:
        _answer(answers, Failure(type(error).__name__, str(error)))
        return 1
    _answer(answers, Result(msgspec.Raw(msgspec.json.encode(result))))
    return 0


def _answer(answers: TextIO, message: Message) -> None:
    answers.write(msgspec.json.encode(message).decode() + "\n")
    answers.flush()


def _end_with_parent() -> None:
    # Not through sys.stdin: a thread that holds its lock stops the interpreter from ending in order.
    while os.read(0, 1):
        pass
    os._exit(1)


def _start(index: int, launch: Launch, lines: queue.SimpleQueue[tuple[int, str]]) -> _Child:
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _stop
    process = subprocess.Popen(
        [sys.executable, "-m", launch.module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        encoding="utf-8",
        env=_RANK_ENVIRONMENT | os.environ,
        pass_fds=() if launch.inherited is None else (launch.inherited,),
    )
    ear = threading.Thread(target=_hear, args=(index, process, lines), daemon=True)
    ear.start()
    with contextlib.suppress(BrokenPipeError):  # a child that is dead already says so by its end of output
        print(msgspec.json.encode(launch.job).decode(), file=process.stdin, flush=True)
    return _Child(launch, process, log, ear)


def _hear(index: int, process: subprocess.Popen[str], lines: queue.SimpleQueue[tuple[int, str]]) -> None:
    """Pass on each line that the child writes, then one `_END`."""
    for line in process.stdout or ():
        lines.put((index, line))
    lines.put((index, _END))


def _listen(
    children: list[_Child],
    lines: queue.SimpleQueue[tuple[int, str]],
    timeout_s: float,
    on_progress: Callable[[str], None],
) -> None:
    """Take in what the children say until all have ended, or shortly after the first failure."""
    deadline = time.monotonic() + timeout_s
    while not all(child.ended for child in children):
        failing = any(child.failed for child in children)
        try:
            index, line = lines.get(timeout=_GRACE_S if failing else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            if failing:
                return
            for child in children:
                child.death = None if child.ended else f"no answer within {timeout_s:.0f} s"
            return
        _take_in(children[index], line, on_progress)


def _take_in(child: _Child, line: str, on_progress: Callable[[str], None]) -> None:
    if line == _END:
        child.ended = True
        if child.result is None and child.failure is None:
            child.death = _last_words(child)
        return
    message = msgspec.json.decode(line, type=Message)
    match message:
        case Progress():
            on_progress(message.text)
        case Result():
            child.result = message.value
        case Failure():
            child.failure = _rebuilt(message, child.launch.label)


def _raise_first_failure(children: list[_Child], step: str) -> None:
    """Raise the cause: a child's own error, else who died, else who noticed that another was lost."""
    failures = [child.failure for child in children if child.failure is not None]
    for failure in failures:
        if not isinstance(failure, RankFailure):
            raise failure
    deaths = {rank: f"{child.launch.label}: {child.death}" for rank, child in enumerate(children) if child.death}
    if deaths:
        raise RankFailure(step, deaths)
    for failure in failures:
        raise failure


def _rebuilt(message: Failure, label: str) -> HiCacheError:
    """Return the error that a child reported, of its own class."""
    kind: object = vars(errors).get(message.kind)
    reason = f"{label}: {message.reason}"
    if not isinstance(kind, type) or not issubclass(kind, HiCacheError) or kind is RankFailure:
        return RankFailure(message.kind, {0: reason})
    return kind(reason)


def _last_words(child: _Child) -> str:
    """Return why the child ended, as far as its exit status and the end of its log tell."""
    status = child.process.wait()
    child.log.seek(max(0, child.log.seek(0, os.SEEK_END) - _LAST_WORDS_NBYTES))
    words = child.log.read().decode(errors="replace").strip().splitlines()[-1:]
    how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"{how}: {words[0]}" if words else how


def _stop(child: _Child) -> None:
    child.process.kill()
    child.process.wait()
    child.ear.join()
    for stream in (child.process.stdout, child.log):
        if stream is not None:
            stream.close()
    with contextlib.suppress(BrokenPipeError):  # closing flushes what the child did not read
        if child.process.stdin is not None:
            child.process.stdin.close()
