"""The parent's side of an engine: starts its processes, sends commands, receives events. Free of torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Self

from hicache_storage.engine_integration.reference_engine import messages, outcome
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig, encode_config
from hicache_storage.engine_integration.reference_engine.frames import FrameWriter, read_frame
from hicache_storage.engine_integration.reference_engine.messages import Command, Event, Shutdown
from hicache_storage.engine_integration.reference_engine.outcome import Ended, Ready, Voice
from hicache_storage.engine_integration.reference_engine.rank_names import log_path, rank_names
from hicache_storage.engine_integration.reference_engine.sizes import check_config
from hicache_storage.errors import ConfigError, InvariantError, RankFailure
from hicache_storage.interrupts import held
from hicache_storage.watchdog import watchdog

_LAUNCHER_LOG = "launcher.log"
_LAUNCHER = "hicache_storage.engine_integration.reference_engine.launcher"

# Threads that spin while they wait take the cores of the ranks that compute; gloo finds its own
# address by name where no interface is given, which needs a resolver.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo"}


class EngineClient:
    """A running engine. Thread-safe; its ranks end with this process, however it ends.

    Args:
        log_folder: made if it is not there; None takes a new one, which `close` removes.

    Raises:
        HiCacheError: what kept a rank from starting, of its own class; `RankFailure` if that cannot be told.

    Attributes:
        log_folder: holds a log of each rank, ``tp0pp0.log`` and so on.
    """

    def __init__(self, config: EngineConfig, *, log_folder: Path | None = None, start_timeout_s: float = 300.0) -> None:
        """Start the engine and return once every rank is ready."""
        check_config(config)
        self.config = config
        self._heard: SimpleQueue[Voice | Ended] = SimpleQueue()
        self._ended: Ended | None = None
        with ExitStack() as begun:
            # An interrupt within would leave processes that nobody closes.
            with held():
                self._temporary = None if log_folder else tempfile.TemporaryDirectory(prefix="hicache-engine-")
                self.log_folder = Path(self._temporary.name) if self._temporary else log_folder or Path()
                with _launcher_log(self.log_folder) as log:
                    verdict, verdict_end = os.pipe()
                    self._process = _launch(verdict_end, self.log_folder, log, config.environment)
                    # Where no thread can be started, or another interrupt ends `close`, this is what is left to do.
                    begun.callback(self._process.wait)
                    begun.callback(self.kill)
                    os.close(verdict_end)
                self._commands = FrameWriter(_own(self._process.stdin))
                begun.callback(self._commands.close)
                ends = (_own(self._process.stdout), verdict)
                self._ear = threading.Thread(target=self._listen, args=ends, name="hicache-events", daemon=True)
                self._ear.start()
                begun.callback(self.close, timeout_s=0)
            with suppress(BrokenPipeError):  # the launcher's end is heard of below
                self._commands.write(encode_config(config))
            self._await_ready(start_timeout_s)
            begun.pop_all()

    def send(self, command: Command) -> None:
        """Pass *command* on to every rank. What comes after the engine's end is lost: `receive` tells of that."""
        with suppress(BrokenPipeError):
            self._commands.write(messages.encode(command))

    def receive(self) -> Event | None:
        """Return the next event, blocking until there is one; None from then on when the engine was shut down.

        Raises:
            HiCacheError: the engine has ended otherwise, each time; a `RankFailure` names the rank that died.
        """
        voice = self._ended or self._heard.get()
        if isinstance(voice, Ended):
            self._ended = voice
            self._raise_failure(voice, "serve")
            return None
        if isinstance(voice, Ready):
            raise InvariantError("the engine is ready twice")
        return voice

    def log_of(self, rank: int) -> Path:
        """Return where the rank logs, counted stage by stage."""
        return log_path(self.log_folder, rank_names(self.config.ranks)[rank])

    @property
    def pid(self) -> int:
        """Process id of the launcher, the parent of all ranks."""
        return self._process.pid

    def kill(self) -> None:
        """End the engine's processes at once; whoever waits for an event hears of it. It stays to be closed."""
        self._process.kill()  # the ranks die with the launcher

    def close(self, timeout_s: float = 60.0) -> None:
        """Shut the engine down and end its processes, by force after *timeout_s*. Calling it again does nothing."""
        # A rank that hangs may not even read the command.
        with watchdog(timeout_s, self.kill):
            self.send(Shutdown())
            self._process.wait()
        self._ear.join()
        self._commands.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_ready(self, timeout_s: float) -> None:
        try:
            voice = self._heard.get(timeout=timeout_s)
        except Empty:
            raise RankFailure("start", {0: f"the engine was not ready within {timeout_s:g} s"}) from None
        if isinstance(voice, Ended):
            self._raise_failure(voice, "start")
            raise RankFailure("start", {0: "the engine ended before it was ready"})

    def _listen(self, events: int, verdict: int) -> None:
        """Take in what the engine says until it has ended, so that no rank ever waits for somebody to listen."""
        while (message := read_frame(events)) is not None:
            self._heard.put(outcome.decode_voice(message))
        last = read_frame(verdict)
        os.close(events)
        os.close(verdict)
        self._heard.put(Ended({0: self._launcher_death()}) if last is None else outcome.decode_ended(last))

    def _launcher_death(self) -> str:
        status = self._process.wait()
        words: list[str] = []
        with suppress(FileNotFoundError):  # where even closing was interrupted the folder may go first
            words = (self.log_folder / _LAUNCHER_LOG).read_text(errors="replace").strip().splitlines()
        return f"launcher: ended with status {status}{': ' + words[-1] if words else ''}"

    def _raise_failure(self, ended: Ended, step: str) -> None:
        failure = ended.error(step)
        if failure is not None:
            raise failure


def _own(pipe: IO[bytes] | None) -> int:
    """Return a descriptor of *pipe* that is the caller's; *pipe* itself is closed."""
    if pipe is None:
        raise InvariantError("the launcher was started without a pipe")
    with pipe:
        return os.dup(pipe.fileno())


def _launcher_log(folder: Path) -> IO[bytes]:
    """Return the launcher's log, open, in *folder*, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / _LAUNCHER_LOG).open("wb")
    except OSError as error:
        raise ConfigError(f"log folder {folder} cannot be written: {error.strerror}") from error


def _launch(verdict: int, log_folder: Path, log: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own module, no shell
        [sys.executable, "-m", _LAUNCHER, str(verdict), str(log_folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        bufsize=0,
        env=_ENVIRONMENT | os.environ | environment,
        pass_fds=(verdict,),
        start_new_session=True,  # a Ctrl-C is for the parent, which shuts the engine down in order
    )
