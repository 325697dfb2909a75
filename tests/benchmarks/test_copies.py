"""What is timed as a copy within memory moves every byte to its place, or is found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.subject import Subject
from benchmarks.subjects.copies import DeviceCopies, HostRelayout, TensorCopy
from benchmarks.workload import Workload

SMALL = Workload(folder="", objects=3, batch=3, num_layers=2, kv_heads=4, head_dim=8, page_tokens=4)
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
MLA = replace(SMALL, kv_heads=0)
CASES: dict[str, tuple[Callable[[], Subject], Workload]] = {
    "tensor": (TensorCopy, SMALL),
    "one group": (DeviceCopies, SMALL),
    "groups": (DeviceCopies, replace(SMALL, group_heads=2)),
    "MLA": (DeviceCopies, MLA),
    **{name: (HostRelayout, replace(SMALL, host_layout=name, group_heads=2)) for name in LAYOUTS},
}


@pytest.mark.parametrize(("make", "workload"), CASES.values(), ids=CASES)
def test_pages_go_out_and_come_back_in_their_places(make: Callable[[], Subject], workload: Workload) -> None:
    subject = make()
    subject.prepare(workload)

    subject.write()
    subject.clear_memory()
    subject.read()

    assert subject.wrong_objects() == 0
    subject.release()


@pytest.mark.parametrize(("make", "workload"), CASES.values(), ids=CASES)
def test_a_copy_that_does_nothing_is_found_out(make: Callable[[], Subject], workload: Workload) -> None:
    subject = make()
    subject.prepare(workload)

    subject.write()
    subject.clear_memory()
    assert subject.wrong_objects() == workload.objects

    subject.wipe()
    subject.read()
    assert subject.wrong_objects() == workload.objects
    subject.release()


def test_a_latent_page_counts_one_row_a_token() -> None:
    assert MLA.object_nbytes == 2 * 4 * 8 * 2
    assert SMALL.object_nbytes == 2 * 2 * 4 * 4 * 8 * 2
