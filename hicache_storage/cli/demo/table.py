"""How the demo shows its outcome: a table and a few sentences, or one JSON document."""

from __future__ import annotations

from hicache_storage.cli.demo.steps import ReaderRow, Scene, Stored
from hicache_storage.cli.output import counted, print_json, print_table

_HEADERS = (
    "reader",
    "writer",
    "pages hit",
    "objects",
    "MB moved",
    "restore GB/s",
    "TTFT cold s",
    "TTFT warm s",
    "speed-up",
    "same text",
)


def print_outcome(scene: Scene, rows: list[ReaderRow], stored: Stored, text: str, place: str) -> None:
    """Write the table and what it means to stdout."""
    print_table(_HEADERS, [_cells(scene, row) for row in rows])
    print()
    print(f"The model went on: {text!r}")
    print(f"The {stored.sentence}.\nstore: {place}")
    print("TTFT: time to first token, without process start and model load.")
    for row in rows:
        why = _why_recomputed(row)
        if row.pages_hit < scene.prompt.num_pages:
            print(f"{row.reader} recomputed from page {row.pages_hit} on: {why}")
    if any(row.quarantined for row in rows):
        print("What was damaged is out of use (quarantined); the next run computes and writes it anew.")


def _why_recomputed(row: ReaderRow) -> str:
    if row.quarantined:
        return f"it met {counted(row.quarantined, 'damaged object')} ({row.failure})"
    return row.failure or "an object of that page is no longer in the store"


def print_document(scene: Scene, rows: list[ReaderRow], stored: Stored, text: str, place: str) -> None:
    """Write everything as JSON to stdout."""
    prompt, cache = scene.prompt, scene.cache
    print_json(
        {
            "readers": [_document(scene, row) for row in rows],
            "writer": scene.writer.name,
            "model": cache.model_id,
            "dtype": cache.dtype,
            "store": place,
            "namespace": cache.namespace.digest,
            "warm_store": stored.already_there == stored.objects,
            "objects_total": stored.objects,
            "objects_already_there": stored.already_there,
            "objects_stored": stored.stored,
            "objects_quarantined": sum(row.quarantined for row in rows),
            "pages": prompt.num_pages,
            "page_tokens": prompt.page_tokens,
            "prompt_tokens": len(prompt.tokens),
            "text": text,
        }
    )


def _document(scene: Scene, row: ReaderRow) -> dict[str, object]:
    document: dict[str, object] = {
        "writer": scene.writer.name,
        "reader": row.reader,
        "pages_hit": row.pages_hit,
        "objects": row.objects,
        "nbytes": row.nbytes,
        "restore_gb_s": row.restore_gb_s,
        "ttft_cold_s": row.ttft_cold_s,
        "ttft_warm_s": row.ttft_warm_s,
        "same_text": row.same_text,
    }
    if row.failure:
        document["failure"] = row.failure
        document["objects_quarantined"] = row.quarantined
    return document


def _cells(scene: Scene, row: ReaderRow) -> list[str]:
    return [
        row.reader,
        scene.writer.name,
        f"{row.pages_hit}/{scene.prompt.num_pages}",
        str(row.objects),
        f"{row.nbytes / 1e6:.1f}",
        "-" if row.restore_gb_s is None else f"{row.restore_gb_s:.2f}",
        f"{row.ttft_cold_s:.3f}",
        f"{row.ttft_warm_s:.3f}",
        f"{row.ttft_cold_s / row.ttft_warm_s:.1f}x",
        "yes" if row.same_text else "NO",
    ]
