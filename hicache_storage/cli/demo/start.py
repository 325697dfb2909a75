"""Run the demo: the store, the model, the documents, the writer, the readers, and what came of it."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from hicache_storage.cli import exit_codes
from hicache_storage.cli.demo import steps, table
from hicache_storage.cli.demo.conversation import Conversation, converse, load_tokenizer, read_texts
from hicache_storage.cli.demo.failures import status_of
from hicache_storage.cli.demo.scene import Scene
from hicache_storage.cli.demo.servers import provided_store
from hicache_storage.cli.output import counted, say
from hicache_storage.engine_integration.reference_engine.model_config import ModelConfig, read_model_config
from hicache_storage.engine_integration.reference_engine.model_folder import ModelSource, find_model
from hicache_storage.errors import ConfigError
from hicache_storage.interrupts import heard_once
from hicache_storage.layout import Topology, coarsest_grid
from hicache_storage.registry import ResolvedStore


def run_demo(args: argparse.Namespace) -> int:
    """Return the exit status: MISSING if a page was not there or a text differs.

    Raises:
        HiCacheError: what kept it from going on.
    """
    tell = _clock()
    with heard_once(), provided_store(args, tell) as resolved:
        return _run(args, resolved, tell)


def _run(args: argparse.Namespace, resolved: ResolvedStore, tell: Callable[[str], None]) -> int:
    writer, readers = Topology.parse(args.writer), [Topology.parse(name) for name in args.readers.split(",")]
    source = _model(args, tell)
    config = read_model_config(source.folder)
    tokenizer = load_tokenizer(source.folder)
    conversations = [converse(text, tokenizer) for text in read_texts(args.prompt_file)]
    longest = _check_lengths(conversations, config, args)
    shape = config.kv_shape(dtype=args.dtype, page_tokens=args.page_size)
    scene = Scene(
        source=source,
        shape=shape,
        grid=coarsest_grid(shape, [writer]),
        dtype=args.dtype,
        store=resolved,
        writer=writer,
        device_pages=2 * -(-longest // args.page_size),
        max_new_tokens=args.max_new_tokens,
        scope=uuid4().hex if args.cold else None,
        timeout_s=args.timeout,
        decode=tokenizer.decode,
        say=tell,
    )
    for topology in (writer, *readers):
        scene.engine(topology, writes=False)  # what cannot work is said now
    tell(_what_is_asked(conversations))
    return _play(scene, conversations, readers, as_json=args.json)


def _play(scene: Scene, conversations: Sequence[Conversation], readers: Sequence[Topology], *, as_json: bool) -> int:
    asked: list[tuple[int, ...]] = []
    try:
        written = steps.write(scene, conversations, asked)
        readings = [steps.read(scene, reader, written, conversations) for reader in readers]
    finally:
        if scene.scope is not None:
            steps.forget(scene, asked)
    show = table.print_document if as_json else table.print_outcome
    show(scene, written, readings, _place(scene.store))
    failed = max(map(status_of, (written.failures, *(reading.failures for reading in readings))))
    complete = all(reading.is_complete for reading in readings)
    return failed or (exit_codes.DONE if complete else exit_codes.MISSING)


def _model(args: argparse.Namespace, tell: Callable[[str], None]) -> ModelSource:
    source = find_model(args.model, args.model_cache.expanduser())
    if not source.is_ready:
        tell(f"model: converting {source.name} once, which takes some 20 s; it is kept in {source.folder.parent}")
        source.prepare(timeout_s=args.timeout)
    tell(f"model: {source.name} in {source.folder}")
    return source


def _check_lengths(conversations: Sequence[Conversation], config: ModelConfig, args: argparse.Namespace) -> int:
    """Return the most tokens that one of *conversations* can have.

    Raises:
        ConfigError: one is longer than the model can take, or too short to cache.
    """
    for conversation in conversations:
        if len(conversation.opening) <= args.page_size:
            raise ConfigError(
                f"a document and its question have {len(conversation.opening)} tokens, which is no full page of "
                f"{args.page_size} to cache and one token more to compute"
            )
    longest = max(conversation.most_tokens(args.max_new_tokens) for conversation in conversations)
    if longest > config.max_tokens:
        raise ConfigError(
            f"documents, questions and answers have {longest} tokens, the model takes {config.max_tokens}"
        )
    return longest


def _what_is_asked(conversations: Sequence[Conversation]) -> str:
    turns = sum(max(1, conversation.num_turns - 1) for conversation in conversations)
    documents = counted(len(conversations), "document")
    return f"{documents}: {counted(turns, 'turn')} for the writer, {len(conversations)} more for each reader"


def _place(resolved: ResolvedStore) -> str:
    """Return the store in words, secrets masked, also those within a URL."""
    shown = (setting for setting in resolved.settings if setting.source != "default" or setting.name == "path")
    given = [f"{setting.name}={setting.value}" for setting in shown]
    options = re.sub(r"://[^/@\s]*@", "://***@", ", ".join(given))
    return f"{resolved.backend} ({options})" if options else resolved.backend


def _clock() -> Callable[[str], None]:
    """Return a function that shows a step on stderr with the seconds since now."""
    started_s = time.monotonic()

    def tell(text: str) -> None:
        say(f"[{time.monotonic() - started_s:5.1f} s] {text}")

    return tell
