"""One server process: started, waited for, stopped, and never left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hicache_storage.errors import ConfigError, StoreUnavailable
from hicache_storage.interrupts import held

_POLL_S = 0.05
_STOP_WITHIN_S = 10.0
_LOG_TAIL_NBYTES = 4000


class ServiceProcess:
    """A server in a process group of its own, with a scratch folder and a log file.

    Use as a context manager, or call `stop`; what is neither has ended with this process at the latest. `kill` and
    `start` let a test take a server away and bring it back on the same ports with the same data.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[Path], Sequence[str]],
        *,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        start_within_s: float = 60.0,
    ) -> None:
        """Describe a server; `start` runs it.

        Args:
            name: what error messages call it.
            command: from the scratch folder to the command line.
            ready: whether the server answers; must not raise and must return within a second or so.
            environment: variables added to this process's own.
        """
        self.name = name
        self._processes: list[subprocess.Popen[bytes]] = []
        with held():
            self.folder = Path(tempfile.mkdtemp(prefix=f"hicache-{name}-"))
            weakref.finalize(self, _leave_nothing, os.getpid(), self.folder, self._processes)
        self._command = command
        self._ready = ready
        self._environment = dict(environment or {})
        self._start_within_s = start_within_s

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    @property
    def _process(self) -> subprocess.Popen[bytes] | None:
        return self._processes[-1] if self._processes else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Run the server and return when it answers; where this raises, whatever it is, nothing runs.

        Raises:
            ConfigError: its program is not installed.
            StoreUnavailable: it ended or did not answer in time; the message has the end of its log.
        """
        try:
            self._launch(list(self._command(self.folder)))
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """End the server at once, as a crash would; its data stays."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Make the server silent: it accepts connections and never answers, also what it has begun."""
        self._send(signal.SIGSTOP)
        if self._process is not None:
            # The signal is only sent so far; on a busy machine threads run on for a while.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._send(signal.SIGCONT)

    def stop(self) -> None:
        """End the server and remove its data. Calling it again does nothing."""
        self.resume()
        self._signal(signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, command: Sequence[str]) -> None:
        with self.log_path.open("ab") as log:
            try:
                # An interrupt within would leave a server that nobody knows.
                with held():
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=os.environ | self._environment,
                        cwd=self.folder,
                        start_new_session=True,
                    )
                    self._processes.append(process)
            except FileNotFoundError as error:
                raise ConfigError(f"{self.name}: the program {command[0]!r} is not installed") from error

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_within_s
        # In this order: whoever answers while this process is gone is somebody else.
        while not (self._ready() and self.running):
            if not self.running or time.monotonic() > deadline:
                reason = "ended" if not self.running else f"did not answer within {self._start_within_s:.0f} s"
                tail = self._log_tail()
                raise StoreUnavailable(f"{self.name} {reason}; its log ends:\n{tail}", backend=self.name, op="start")
            time.sleep(_POLL_S)

    def _send(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _signal(self, number: int) -> None:
        """Send a final signal to the whole group and wait; use SIGKILL if it is ignored."""
        self._send(number)
        if self._process is None:
            return
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._send(signal.SIGKILL)
            self._process.wait()
        _kill_group(self._process)
        self._processes.clear()

    def _log_tail(self) -> str:
        try:
            return self.log_path.read_bytes()[-_LOG_TAIL_NBYTES:].decode(errors="replace")
        except OSError:
            return "(no log)"


def _kill_group(leader: subprocess.Popen[bytes]) -> None:
    """End whatever *leader* has started, and itself if it is not gone: nothing must outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)


def _leave_nothing(owner: int, folder: Path, running: list[subprocess.Popen[bytes]]) -> None:
    """End what was never stopped, when nobody knows the server any more or this process ends."""
    # A fork has a copy of everything and owns nothing.
    if os.getpid() != owner:
        return
    for process in running:
        _kill_group(process)
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


class ReservedPort:
    """A TCP port of the loopback interface that the system gives to nobody else while this object is there.

    A server that sets ``SO_REUSEADDR``, as servers do, can listen on it, and again after it has ended.
    Whoever connects while none listens is refused.

    Attributes:
        number: the port.
    """

    def __init__(self, number: int = 0) -> None:
        """Reserve *number*; 0 = any that is free.

        Raises:
            OSError: somebody has it.
        """
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", number))
            # From here on Linux lets a second socket have the port that says so too.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.number: int = holder.getsockname()[1]
            weakref.finalize(self, os.close, holder.detach())


def answers(port: int, request: bytes = b"", expected: bytes = b"") -> bool:
    """Say whether a server on loopback accepts a connection and, if *request* is given, answers with *expected*."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            if not request:
                return True
            connection.settimeout(1.0)
            connection.sendall(request)
            return connection.recv(len(expected) or 1).startswith(expected)
    except OSError:
        return False
