"""`hicache serve` with the fake engine, as a process: ``python -m tests.cli.serve.fake_server FLAGS``."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from hicache_storage.cli import exit_codes
from hicache_storage.cli.output import say
from hicache_storage.cli.serve.arguments import add_arguments, read_settings
from hicache_storage.cli.serve.start import run_server
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.errors import HiCacheError
from tests.cli.serve.fake_engine import FakeEngine


def start(config: EngineConfig, log_folder: Path | None) -> FakeEngine:
    if log_folder is not None and log_folder.name == "never":
        say("fake: starting for ever")
        threading.Event().wait()
    return FakeEngine()


def main() -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    try:
        return run_server(read_settings(parser.parse_args()), start)
    except HiCacheError as error:
        say(f"{type(error).__name__}: {error}")
        return exit_codes.of_error(error)
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
