"""Of all who open a folder exactly one is the first, whatever moment the others come at."""

from __future__ import annotations

import fcntl
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hicache_storage.backends.file.folder import Folder, Membership
from tests.processes import awaited

ENTER = """
import sys
from pathlib import Path
from hicache_storage.backends.file.folder import Folder, Membership
print("ready", flush=True)
input()
membership = Membership(Folder.prepare(Path(sys.argv[1])))
print("first" if membership.alone else "later", flush=True)
membership.settle()
input()
"""


class Entrant:
    """A process that opens the folder when it is told to, says whether it was the first, and stays."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-c", ENTER, str(root)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.line() == "ready"

    def enter(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def waits_for_a_lock(self) -> bool:
        waiters = [line.split() for line in Path("/proc/locks").read_text().splitlines() if " -> " in line]
        return any(str(self.process.pid) in fields for fields in waiters)

    def answered(self) -> bool:
        stdout = self.process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], 0.01)
        return bool(ready)

    def leave(self) -> None:
        self.process.communicate("\n\n")


@pytest.fixture
def entrants(root: Path) -> Iterator[list[Entrant]]:
    with ExitStack() as stack:
        found = []
        for _ in range(6):
            found.append(Entrant(root))
            stack.enter_context(awaited(found[-1].process))
            stack.callback(found[-1].leave)
        yield found


def test_of_processes_that_enter_at_once_exactly_one_is_the_first(entrants: list[Entrant]) -> None:
    for entrant in entrants:
        entrant.enter()

    assert sorted(entrant.line() for entrant in entrants) == ["first"] + ["later"] * 5


def test_nobody_else_is_first_while_the_first_one_opens_the_door(
    root: Path, entrants: list[Entrant], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux gives up the exclusive lock before it grants the shared one; the other process comes in between."""
    real = fcntl.flock
    other = entrants[0]
    held: set[int] = set()

    def in_two_steps(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH and fd in held:
            real(fd, fcntl.LOCK_UN)
            other.enter()
            while not (other.answered() or other.waits_for_a_lock()):
                pass
        real(fd, operation)
        if operation & fcntl.LOCK_EX and fd not in held:
            held.add(fd)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", in_two_steps)
        membership = Membership(Folder.prepare(root))
        if membership.alone:
            membership.settle()

    assert membership.alone
    assert other.line() == "later"
    membership.close()
