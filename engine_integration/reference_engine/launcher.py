"""The process between an engine's parent and its ranks: forks them, watches them, says how they ended.

Run as ``python -m hicache_storage.engine_integration.reference_engine.launcher DESCRIPTOR FOLDER``: the config comes
as the first message on stdin, what follows it are the first rank's commands; its events go to stdout, the launcher's
own last word to DESCRIPTOR, and each rank's log to a file in FOLDER. Forked ranks share the code and the libraries
that the launcher has loaded: eight of them start as fast as one.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hicache_storage.engine_integration.reference_engine import outcome
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, LogLevel, decode_config
from hicache_storage.engine_integration.reference_engine.frames import FrameWriter, read_frame
from hicache_storage.engine_integration.reference_engine.outcome import Broken, Ended
from hicache_storage.engine_integration.reference_engine.rank import RankPipes, die_with_parent, run_rank
from hicache_storage.engine_integration.reference_engine.rank_names import log_path, rank_names

_GRACE_S = 2.0
"""After one rank has failed, how long the others may take to say that they have noticed, or why they failed too."""

_POLL_S = 0.02
_LAST_WORDS_NBYTES = 4096


@dataclass(slots=True)
class _Child:
    name: str
    pid: int
    last_words: int
    log: Path
    status: int | None = None
    broken: Broken | None = None

    def reason(self) -> str | None:
        """Return why it ended; None if it ended in order."""
        if self.status == 0:
            return None
        if self.broken is not None:
            return f"{self.name}: {self.broken.kind}: {self.broken.reason}"
        code = os.waitstatus_to_exitcode(self.status or 0)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return f"{self.name}: {how}{_tail(self.log)}"


def main(arguments: list[str]) -> int:
    """Run an engine; return 0 if every rank ended in order."""
    verdict, folder = FrameWriter(int(arguments[0])), Path(arguments[1])
    message = read_frame(0)
    if message is None:
        return 1
    config = decode_config(message)
    children = _fork_all(config, folder)
    ended = _watch(children)
    verdict.write(outcome.encode(ended))
    return 1 if ended.reasons else 0


def _fork_all(config: EngineConfig, folder: Path) -> list[_Child]:
    """Start every rank. Nothing has used a thread or a device in this process, so forking it is safe."""
    # A file without a name: nothing is left of it when the processes are killed.
    with tempfile.TemporaryFile() as rendezvous:
        return [
            _fork(config, rank, rendezvous.fileno(), log_path(folder, name))
            for rank, name in enumerate(rank_names(config.ranks))
        ]


def _fork(config: EngineConfig, rank: int, rendezvous: int, log: Path) -> _Child:
    reader, writer = os.pipe()
    launcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            die_with_parent(launcher)
            status = _be_rank(config, rank, RankPipes(0, 1, writer, rendezvous), log)
        finally:
            # Not through the interpreter's exit: threads may wait in C code, and the launcher's clean-up is not ours.
            os._exit(status)
    os.close(writer)
    return _Child(log.stem, pid, reader, log)


def _be_rank(config: EngineConfig, rank: int, pipes: RankPipes, log: Path) -> int:
    os.environ["HICACHE_RANK"] = log.stem
    events = os.dup(pipes.events)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # Whatever a library prints belongs into the log, not between the events.
    os.dup2(output, 1)
    os.dup2(output, 2)
    _log_from(config.log_level, log.stem)
    return run_rank(config, rank, RankPipes(pipes.commands, events, pipes.last_words, pipes.rendezvous))


def _log_from(level: LogLevel, name: str) -> None:
    """Log to stderr, as the rank *name*, whatever is of *level* or above."""
    logging.basicConfig(level=level.upper(), format=f"%(asctime)s {name} %(levelname)s %(name)s %(message)s")
    if level == "debug":
        # SDKs of stores write the headers of their requests at that level, credentials included.
        logging.getLogger().setLevel(logging.INFO)
        logging.getLogger("hicache_storage").setLevel(logging.DEBUG)


def _watch(children: list[_Child]) -> Ended:
    """Return how the ranks ended, after the last one has; a failure ends them all."""
    deadline_s: float | None = None
    while any(child.status is None for child in children):
        for child in children:
            _look_at(child)
        if deadline_s is None and any(child.status for child in children):
            deadline_s = time.monotonic() + _GRACE_S
        if deadline_s is not None and time.monotonic() > deadline_s:
            return _give_up(children)
        time.sleep(_POLL_S)
    return _verdict(children)


def _give_up(children: list[_Child]) -> Ended:
    ended = _verdict([child for child in children if child.status is not None])
    for child in children:
        if child.status is None:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
    return ended


def _look_at(child: _Child) -> None:
    if child.status is not None:
        return
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if pid:
        child.status = status
        words = read_frame(child.last_words)
        child.broken = None if words is None else outcome.decode_broken(words)


def _verdict(children: list[_Child]) -> Ended:
    """Return why the engine ended: those who failed by themselves, else those who lost another rank."""
    failed = [(rank, child) for rank, child in enumerate(children) if child.status]
    causes = [(rank, child) for rank, child in failed if child.broken is None or child.broken.is_cause]
    reasons: dict[int, str] = {}
    told: dict[Broken, str] = {}
    for rank, child in causes or failed:
        first = child.name if child.broken is None else told.setdefault(child.broken, child.name)
        reasons[rank] = (child.reason() or "") if first == child.name else f"{child.name}: the same as {first}"
    return Ended(reasons, next((child.broken for _, child in causes if child.broken is not None), None))


def _tail(log: Path) -> str:
    """Return the last line of *log*, for a message."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS_NBYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return f"; its log ends with: {lines[-1]}" if lines else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
