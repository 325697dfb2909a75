"""What happens to objects, to children and to the process itself when processes end."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from hicache_storage.backends.mooncake import MooncakeOptions, MooncakeStore
from hicache_storage.testing.bodies import body_of, poisoned
from hicache_storage.testing.services.mooncake import MooncakeService
from tests.processes import awaited

pytest_plugins = ["tests.backends.mooncake.services"]

_WITHIN_S = 110

_OPEN = """
import os, signal, sys, threading
from hicache_storage.backends.mooncake import MooncakeOptions, MooncakeStore
from hicache_storage.errors import StoreError, Unsupported
from hicache_storage.testing.bodies import body_of
from hicache_storage.types import RangeRead

signal.alarm(100)
options = MooncakeOptions(**{options!r})
store = MooncakeStore(options)
"""

_CHILD = """
store.write("k", [b"x"])
child = os.fork()
if child == 0:
    signal.alarm(90)
    said = []
    for opened in (store, MooncakeStore(options)):
        try:
            opened.stat("k")
        except Unsupported:
            said.append("refused")
    store.close()
    os._exit(0 if said == ["refused", "refused"] else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert store.stat("k").nbytes == 1
"""

_UNUSED_PARENT = """
child = os.fork()
if child == 0:
    signal.alarm(90)
    with MooncakeStore(options) as own:
        own.write("k", [b"x"])
        os._exit(0 if own.stat("k").nbytes == 1 else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
"""

_STUCK = """
body = bytearray(4 << 20)
while True:
    try:
        store.write("k", [body])
        store.read_into("k", 0, [body])
        break
    except StoreError:  # A busy machine may not keep the deadline.
        pass
print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=store.read_many, args=([RangeRead("k", 0, [body])],), daemon=True).start()
store.exists_many(["k"])
"""

_FIRST_USE = """
import dataclasses
from functools import partial
from hicache_storage.testing.hooks import at_once

def use(opened, i):
    body = body_of(str(i), 3000)
    opened.write(f"first-{i}", [body])
    target = bytearray(3000)
    return opened.read_into(f"first-{i}", 0, [target]) and target == body

for round in range(20):
    # Every fourth time with a connection of its own, made by whichever thread comes first.
    special = dataclasses.replace(options, key_prefix=f"r{round}/", deadline_s=25 + round // 4)
    with MooncakeStore(special) as opened:
        assert at_once(*[partial(use, opened, i) for i in range(32)]) == [True] * 32
"""

_WRITE_AND_READ = """
assert store.write("k", [b"0123"]) and store.read_into("k", 0, [bytearray(4)])
"""

_ANOTHER_STORE = """
import dataclasses
store = MooncakeStore(dataclasses.replace(options, log_level="INFO"))
"""

_WATCH_THE_LOADING = """
import os, sys
from importlib.abc import MetaPathFinder
seen = []

class Watch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "mooncake.store":
            seen.append((os.environ.get("MC_LOG_LEVEL"), os.environ.get("MC_HANDSHAKE_CONNECT_TIMEOUT")))

sys.meta_path.insert(0, Watch())
"""


def test_objects_outlive_the_process_that_wrote_them(mooncake_cluster: MooncakeService) -> None:
    options = _options(mooncake_cluster, "outlive/")
    target = poisoned(100_000)

    _run(options, "store.write('k', [body_of('k', 100_000)])")

    with MooncakeStore(MooncakeOptions(**options)) as store:  # type: ignore[arg-type]
        assert store.read_into("k", 0, [target])
    assert target == body_of("k", 100_000)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(mooncake_cluster: MooncakeService) -> None:
    _run(_options(mooncake_cluster, "fork/"), _CHILD)


def test_a_child_of_a_process_that_has_not_connected_works(mooncake_cluster: MooncakeService) -> None:
    _run(_options(mooncake_cluster, "fork-unused/"), _UNUSED_PARENT)


def test_a_store_may_be_used_first_by_many_threads(mooncake_cluster: MooncakeService) -> None:
    _run(_options(mooncake_cluster, "first/"), _FIRST_USE)


def test_a_process_ends_without_closing_its_store(mooncake_cluster: MooncakeService) -> None:
    _run(_options(mooncake_cluster, "unclosed/"), "store.write('k', [b'x'])")


def test_a_process_ends_well_while_a_call_is_stuck(own_cluster: MooncakeService) -> None:
    options = _options(own_cluster, "stuck/") | {"deadline_s": 2.0}
    code = _OPEN.format(options=options) + _STUCK
    with awaited(
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        own_cluster.node.pause()

        _, log = process.communicate(b"\n", _WITHIN_S)

    assert process.returncode == 0, log.decode()


@pytest.mark.parametrize(("level", "environments"), [("ERROR", "INFO"), ("INFO", "ERROR")])
def test_the_option_decides_what_the_sdk_prints(
    mooncake_cluster: MooncakeService, level: str, environments: str
) -> None:
    options = _options(mooncake_cluster, f"prints-{level}/") | {"log_level": level}

    log = _run(options, _WRITE_AND_READ, {"MC_LOG_LEVEL": environments})

    assert _informs(log) is (level == "INFO"), log


def test_the_first_stores_log_level_holds_for_the_process(mooncake_cluster: MooncakeService) -> None:
    options = _options(mooncake_cluster, "first-level/") | {"log_level": "ERROR"}

    log = _run(options, _ANOTHER_STORE + _WRITE_AND_READ, {"MC_LOG_LEVEL": "INFO"})

    assert not _informs(log), log


def test_what_the_sdk_reads_only_while_it_is_loaded_is_there_by_then() -> None:
    options: dict[str, object] = {"master_server_address": "127.0.0.1:1", "deadline_s": 14.0, "log_level": "WARNING"}

    _run(options, "assert seen[0] == ('WARNING', '7'), seen", before=_WATCH_THE_LOADING)


def _options(cluster: MooncakeService, prefix: str) -> dict[str, object]:
    return dict(cluster.options) | {"key_prefix": prefix, "deadline_s": 30.0}


def _run(options: dict[str, object], code: str, environment: dict[str, str] | None = None, *, before: str = "") -> str:
    """Return what the process has written to stderr."""
    command = [sys.executable, "-c", before + _OPEN.format(options=options) + code]
    environ = os.environ | (environment or {})
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=_WITHIN_S, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stderr


def _informs(log: str) -> bool:
    """Whether the SDK has printed a line of level INFO."""
    return re.search(r"^I\d{4} ", log, re.MULTILINE) is not None
