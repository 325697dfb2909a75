"""The demo's order of events: the writer's turns of every conversation, then the last turn on each reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

from hicache_storage import telemetry
from hicache_storage.cli.demo.conversation import Conversation
from hicache_storage.cli.demo.failures import in_words
from hicache_storage.cli.demo.results import Reading, Restored, Turn, Written
from hicache_storage.cli.demo.running import Engine, running
from hicache_storage.cli.demo.scene import Scene
from hicache_storage.cli.demo.stored import count_there, delete, object_keys
from hicache_storage.cli.output import counted
from hicache_storage.layout import Topology


def write(scene: Scene, conversations: Sequence[Conversation], asked: list[tuple[int, ...]]) -> Written:
    """Have the writer's engine answer all but the last question of each conversation, and store the KV.

    A conversation of one question is answered by the writer too.

    Args:
        asked: gets the tokens of which objects may be in the store, as it becomes known, whatever happens then.

    Raises:
        HiCacheError: the engine could not do it, or the store does not answer.
    """
    known = object_keys(scene, [conversation.opening for conversation in conversations])
    objects_known = len(known), count_there(scene, known)
    scene.say(_warmth(*objects_known))
    turns: list[Turn] = []
    with _engine(scene, scene.writer, writes=True) as engine:
        for document, conversation in enumerate(conversations, 1):
            turns += _talk(scene, engine, document, conversation, asked)
        engine.settle()
        counters = engine.counters()
    last = {turn.document: turn for turn in turns}
    computed = [(*turn.prompt, *turn.answer.tokens[:-1]) for turn in last.values()]
    keys = object_keys(scene, computed)
    written = Written(
        turns=turns,
        computed=computed,
        next_prompts=[
            _next_prompt(conversation, turn) for conversation, turn in zip(conversations, last.values(), strict=True)
        ],
        objects=len(keys),
        objects_known=objects_known,
        objects_there=count_there(scene, keys),
        counters=counters,
    )
    _tell_of_writing(scene, written)
    return written


def read(scene: Scene, reader: Topology, written: Written, conversations: Sequence[Conversation]) -> Reading:
    """Have a fresh engine of *reader* answer the last question of each conversation, without the store and with it.

    Raises:
        HiCacheError: the engine could not do it.
    """
    reading = Reading(reader, scene.shape.page_tokens)
    with _engine(scene, reader, writes=False) as engine:
        # Weights and code are used once, so that no measured run pays for that.
        engine.ask(written.next_prompts[0][: scene.shape.page_tokens + 1], 2, salt=_new_scope())
        for document, conversation in enumerate(conversations, 1):
            reading.restored.append(_restore(scene, engine, document, conversation, written))
    return reading


def forget(scene: Scene, asked: Sequence[Sequence[int]]) -> None:
    """Delete the objects of what was *asked*, which are this run's alone."""
    gone = delete(scene, object_keys(scene, asked))
    scene.say(f"store: deleted {counted(gone, 'object')} of this run alone")


def _talk(
    scene: Scene, engine: Engine, document: int, conversation: Conversation, asked: list[tuple[int, ...]]
) -> Iterator[Turn]:
    """Yield the writer's turns as they are answered."""
    prompt = conversation.opening
    for turn in range(max(1, conversation.num_turns - 1)):
        asked.append(prompt)
        answer = engine.ask(prompt, scene.max_new_tokens, salt=scene.scope)
        asked.append((*prompt, *answer.tokens))
        question = conversation.questions[turn] if conversation.questions else ""
        scene.say(
            f"{engine.name}: document {document}, turn {turn + 1}: {len(prompt)} tokens, "
            f"{len(prompt) - answer.cached.total} to compute, the first new one after {answer.ttft_s:.2f} s"
        )
        yield Turn(engine.name, document, turn + 1, question, prompt, answer)
        if turn + 1 < conversation.num_turns:
            prompt = conversation.next_prompt(prompt, answer.tokens, turn + 1)


def _next_prompt(conversation: Conversation, turn: Turn) -> tuple[int, ...]:
    if turn.turn == conversation.num_turns:
        return turn.prompt
    return conversation.next_prompt(turn.prompt, turn.answer.tokens, turn.turn)


def _restore(scene: Scene, engine: Engine, document: int, conversation: Conversation, written: Written) -> Restored:
    prompt, computed = written.next_prompts[document - 1], written.computed[document - 1]
    cold = engine.ask(prompt, scene.max_new_tokens, salt=_new_scope())
    before = engine.counters()
    answer = engine.ask(prompt, scene.max_new_tokens, salt=scene.scope)
    counters = {name: value - before.get(name, 0) for name, value in engine.counters().items()}
    scene.say(
        f"{engine.name}: document {document}: {len(prompt)} tokens, {answer.cached.store} of them from the store: "
        f"first new one after {answer.ttft_s:.2f} s, {cold.ttft_s:.2f} s without"
    )
    question = conversation.questions[-1] if conversation.questions else ""
    turn = Turn(engine.name, document, conversation.num_turns, question, prompt, answer)
    page_tokens = scene.shape.page_tokens
    pages = min(len(prompt) - 1, len(computed)) // page_tokens
    return Restored(turn, cold, pages, counters)


@contextmanager
def _engine(scene: Scene, topology: Topology, *, writes: bool) -> Iterator[Engine]:
    config = scene.engine(topology, writes=writes)
    ranks = topology.tp * topology.pp
    scene.say(f"{topology.name}: starting {counted(ranks, 'rank')}")
    with running(config, scene.timeout_s) as engine:
        scene.say(f"{topology.name}: ready")
        yield engine


def _tell_of_writing(scene: Scene, written: Written) -> None:
    nbytes = written.counters.get(telemetry.NBYTES_STORED, 0)
    scene.say(
        f"{scene.writer.name}: stored {counted(written.objects_stored, 'object')}, {nbytes / 1e6:.1f} MB; "
        f"{written.objects_there} of {written.objects} are there"
    )
    if written.failures:
        scene.say(f"{scene.writer.name}: {in_words(written.failures)}")


def _warmth(objects: int, there: int) -> str:
    if there == objects:
        return f"store was warm: all {objects} objects of the documents already there"
    if there:
        return f"store was partly warm: {there} of {objects} objects of the documents already there"
    return f"store was cold: none of {objects} objects of the documents there"


def _new_scope() -> str:
    """Return a cache salt that nobody has used, so that nothing is found in any cache."""
    return uuid4().hex
