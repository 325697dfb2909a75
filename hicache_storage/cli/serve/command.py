"""`hicache serve`: an OpenAI-compatible server on the reference engine, with every tier of the cache."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from hicache_storage.cli.options import add_command
from hicache_storage.cli.output import say
from hicache_storage.cli.serve.arguments import add_arguments, read_settings
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.errors import ConfigError

_EXAMPLES = """hicache serve
hicache serve --tp-size 3 --pp-size 2 --enable-hierarchical-cache --hicache-storage-backend file:///tmp/kv
hicache serve --model-path ./model --enable-hierarchical-cache --hicache-storage-backend file \\
    --hicache-storage-key-scheme unified --hicache-storage-head-partition 2 --hicache-storage-layer-partition 30
curl http://127.0.0.1:30000/v1/completions -d '{"prompt": "The capital of France is", "max_tokens": 8}'"""
_MODULES = ("aiohttp", "aiofiles", "jinja2", "prometheus_client", "safetensors", "tokenizers", "torch")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "serve",
        summary="serve a model over HTTP, with the cache's tiers",
        description="Serve a real model to OpenAI's clients, in any TP x PP topology, with prefixes cached on the device, "
        "on the host and in a store. Prints its URL on stdout once it takes requests. SIGTERM or SIGINT lets running "
        "requests end; a second one ends them.",
        examples=_EXAMPLES,
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    settings = read_settings(args)
    _check_modules()
    # These need what _check_modules asks for; --help does not.
    from hicache_storage.cli.serve.start import run_server  # noqa: PLC0415
    from hicache_storage.engine_integration.reference_engine.client import EngineClient  # noqa: PLC0415

    def start_engine(config: EngineConfig, folder: Path | None) -> EngineClient:
        client = EngineClient(config, log_folder=folder)
        if folder is None:
            # What a rank warns of, such as a store that does not answer, is nowhere else.
            say(f"ranks log to {client.log_folder} while the server runs; --log-folder keeps their logs")
        return client

    return run_server(settings, start_engine)


def _check_modules() -> None:
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"serving needs {', '.join(missing)}: pip install 'hicache-storage[server,demo]'")
