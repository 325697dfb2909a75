"""Ranks as forked processes with gloo groups, the way SGLang's own ranks stand to each other."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import torch

from tests.engines.sglang.stack import Place

T = TypeVar("T")

_DEADLINE_S = 180.0


def on_every_rank(tp: int, pp: int, body: Callable[[Place], T]) -> list[T]:
    """Return what *body* returned on each rank, stage by stage; they run at once.

    The processes are forked, so that SGLang is imported once: the caller must not have started threads that matter.

    Raises:
        AssertionError: a rank raised or was late; the text has every rank's reason.
    """
    context = multiprocessing.get_context("fork")
    places = [Place(tp_rank=t, tp_size=tp, pp_rank=p, pp_size=pp) for p in range(pp) for t in range(tp)]
    with tempfile.TemporaryDirectory(prefix="hicache-ranks-") as folder:
        pipes = [context.Pipe(duplex=False) for _ in places]
        processes = [
            context.Process(target=_run, args=(place, Path(folder) / "rendezvous", body, pipe), daemon=True)
            for place, (_, pipe) in zip(places, pipes, strict=True)
        ]
        for process in processes:
            process.start()
        try:
            answers: list[tuple[str, list[T]]] = [_answer(ours) for ours, _ in pipes]
        finally:
            for process in processes:
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
    wrong = [f"{place}: {error}" for place, (error, _) in zip(places, answers, strict=True) if error]
    assert not wrong, "\n".join(wrong)
    return [results[0] for _, results in answers]


def _answer(pipe: Connection) -> tuple[str, list[T]]:
    if not pipe.poll(_DEADLINE_S):
        return f"no answer after {_DEADLINE_S} s", []
    try:
        answer: tuple[str, list[T]] = pipe.recv()
    except EOFError:
        return "the process died", []
    return answer


def _run(place: Place, rendezvous: Path, body: Callable[[Place], T], pipe: Connection) -> None:
    try:
        result = body(_grouped(place, rendezvous))
        # A later stage may not have received yet what an earlier one sent last.
        torch.distributed.barrier()
        pipe.send(("", [result]))
    except BaseException:
        pipe.send((traceback.format_exc(), []))


def _grouped(place: Place, rendezvous: Path) -> Place:
    """Return *place* with its groups, in a world that all ranks have joined."""
    world = place.tp_size * place.pp_size
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=place.pp_rank * place.tp_size + place.tp_rank,
        world_size=world,
        timeout=timedelta(seconds=_DEADLINE_S),
    )
    tp_groups = [
        torch.distributed.new_group(range(stage * place.tp_size, (stage + 1) * place.tp_size))
        for stage in range(place.pp_size)
    ]
    pp_groups = [torch.distributed.new_group(range(rank, world, place.tp_size)) for rank in range(place.tp_size)]
    return Place(
        tp_rank=place.tp_rank,
        tp_size=place.tp_size,
        pp_rank=place.pp_rank,
        pp_size=place.pp_size,
        tp_group=tp_groups[place.pp_rank],
        pp_group=pp_groups[place.tp_rank],
    )
