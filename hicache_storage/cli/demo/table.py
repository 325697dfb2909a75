"""How the demo shows its outcome: a table and a few sentences, or one JSON document."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_storage import telemetry
from hicache_storage.cli.demo.conversation import QUESTION
from hicache_storage.cli.demo.failures import causes_of, in_words
from hicache_storage.cli.demo.results import Reading, Restored, Turn, Written
from hicache_storage.cli.demo.scene import Scene
from hicache_storage.cli.output import counted, print_json, print_table

_HEADERS = (
    "engine",
    "document",
    "turn",
    "prompt",
    "device",
    "host",
    "store",
    "TTFT cold s",
    "TTFT s",
    "speed-up",
    "same text",
)
_LEGEND = """prompt: tokens; device, host, store: how many of them that tier had, so that they were not computed. TTFT: time to
first token; cold: without any cache. same text: token for token what the same engine says without any cache, though
another TP size sums in another order and so leaves other last bits in the KV."""


def print_outcome(scene: Scene, written: Written, readings: Sequence[Reading], place: str) -> None:
    """Write the table and what it means to stdout."""
    rows = [_cells(turn) for turn in written.turns]
    rows += [_cells(one.turn, one) for reading in readings for one in reading.restored]
    print_table(_HEADERS, rows)
    print(f"\n{_LEGEND}\n")
    print(_writing(scene, written))
    for reading in readings:
        print(_moved(reading))
    for sentence in _troubles(scene, written, readings):
        print(sentence)
    print(f"store: {place}\n")
    for one in readings[-1].restored:
        print(f"{one.turn.document}. {one.turn.question.removeprefix(QUESTION).strip()}".rstrip())
        print(f"   {scene.decode(one.turn.answer.tokens).strip()!r}")


def print_document(scene: Scene, written: Written, readings: Sequence[Reading], place: str) -> None:
    """Write everything as JSON to stdout."""
    print_json(
        {
            "readers": [_reader(scene, reading) for reading in readings],
            "writer": scene.writer.name,
            "writer_ranks": scene.writer.tp * scene.writer.pp,
            "turns": [_turn(scene, turn) for turn in written.turns],
            "model": scene.source.name,
            "dtype": scene.dtype,
            "store": place,
            "namespace": scene.namespace.digest,
            "page_tokens": scene.shape.page_tokens,
            "warm_store": written.was_warm,
            "objects_total": written.objects,
            "objects_there": written.objects_there,
            "objects_stored": written.objects_stored,
            "nbytes_stored": written.counters.get(telemetry.NBYTES_STORED, 0),
            "one_writer_per_object": written.one_writer,
            "objects_quarantined": written.num_quarantined + sum(reading.num_quarantined for reading in readings),
            "failures": written.failures,
        }
    )


def _cells(turn: Turn, restored: Restored | None = None) -> list[str]:
    cached = turn.answer.cached
    shared = [str(turn.document), str(turn.turn), str(len(turn.prompt))]
    tiers = [str(tokens) for tokens in (cached.device, cached.host, cached.store)]
    if restored is None:
        return [turn.engine, *shared, *tiers, "-", f"{turn.answer.ttft_s:.3f}", "-", "-"]
    cold_s, warm_s = restored.cold.ttft_s, turn.answer.ttft_s
    same = "yes" if restored.is_same_text else "NO"
    return [turn.engine, *shared, *tiers, f"{cold_s:.3f}", f"{warm_s:.3f}", f"{cold_s / warm_s:.1f}x", same]


def _writing(scene: Scene, written: Written) -> str:
    nbytes = written.counters.get(telemetry.NBYTES_STORED, 0)
    stored = f"{scene.writer.name} stored {counted(written.objects_stored, 'object')}, {nbytes / 1e6:.1f} MB"
    there = f"{stored}; the store has {written.objects_there} of {written.objects}"
    if written.one_writer is None:
        return f"{there}, some of them from before."
    if written.one_writer:
        return f"{there}, each stored by exactly one of {counted(scene.writer.tp * scene.writer.pp, 'rank')}."
    return f"{there}, NOT each stored by exactly one rank."


def _moved(reading: Reading) -> str:
    objects, nbytes = reading.total(telemetry.OBJECTS_READ), reading.total(telemetry.NBYTES_READ)
    return (
        f"{reading.reader.name} restored {reading.pages_hit}/{reading.pages_expected} pages in "
        f"{counted(objects, 'object')} or parts of them, {nbytes / 1e6:.1f} MB, all verified."
    )


def _troubles(scene: Scene, written: Written, readings: Sequence[Reading]) -> list[str]:
    """Return what went wrong, a sentence each."""
    sentences = []
    if written.num_quarantined:
        damage = f"{counted(written.num_quarantined, 'damaged object')} ({causes_of(written.failures)})"
        sentences.append(f"{scene.writer.name} met {damage}; it computed and stored the pages anew.")
    elif written.failures:
        sentences.append(f"{scene.writer.name} was failed by the store: {in_words(written.failures)}.")
    for reading in readings:
        for one in reading.restored:
            pages = one.turn.answer.cached.total // reading.page_tokens
            if pages < one.pages_expected:
                where = f"{reading.reader.name}, document {one.turn.document}"
                sentences.append(f"{where}: recomputed from page {pages} on: {_why_recomputed(one)}")
    if any(reading.num_quarantined for reading in readings):
        sentences.append("What was damaged is out of use (quarantined); the next run computes and writes it anew.")
    return sentences


def _why_recomputed(one: Restored) -> str:
    if one.num_quarantined:
        return f"it met {counted(one.num_quarantined, 'damaged object')} ({causes_of(one.failures)})"
    return in_words(one.failures) or "an object of that page is not in the store"


def _reader(scene: Scene, reading: Reading) -> dict[str, object]:
    return {
        "writer": scene.writer.name,
        "reader": reading.reader.name,
        "pages_expected": reading.pages_expected,
        "pages_hit": reading.pages_hit,
        "objects": reading.total(telemetry.OBJECTS_READ),
        "nbytes": reading.total(telemetry.NBYTES_READ),
        "same_text": all(one.is_same_text for one in reading.restored),
        "objects_quarantined": reading.num_quarantined,
        "failures": reading.failures,
        "turns": [
            _turn(scene, one.turn) | {"ttft_cold_s": one.cold.ttft_s, "same_text": one.is_same_text}
            for one in reading.restored
        ],
    }


def _turn(scene: Scene, turn: Turn) -> dict[str, object]:
    cached = turn.answer.cached
    return {
        "document": turn.document,
        "turn": turn.turn,
        "question": turn.question,
        "prompt_tokens": len(turn.prompt),
        "cached_tokens": {"device": cached.device, "host": cached.host, "store": cached.store},
        "ttft_s": turn.answer.ttft_s,
        "text": scene.decode(turn.answer.tokens).strip(),
    }
