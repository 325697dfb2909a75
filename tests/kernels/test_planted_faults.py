"""The checks of the other tests catch a kernel that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.cases import BY_NAME, a_part, check_gather, check_scatter
from tests.kernels.triton_modules import load_kernels, load_source, module, require_triton, shipped_source

CHECKS = {"gather": check_gather, "scatter": check_scatter}
IMPORT = "from hicache_storage.kernels.addressing import block_of\n"
FAULTS = {
    "gather without the store's mask": ("gather", "tl.load(pool, mask=inside), mask=inside", "tl.load(pool)"),
    "scatter without the store's mask": ("scatter", "tl.load(host, mask=inside), mask=inside", "tl.load(host)"),
    "gather without the distance of slots": ("gather", "+ element // RUN, SLOT)", "+ element // RUN, RUN)"),
    "scatter without the distance of slots": ("scatter", "+ element // RUN, SLOT)", "+ element // RUN, RUN)"),
    "gather without the place in the row": ("gather", " + element % RUN", ""),
    "scatter without the start of the host page": (
        "scatter",
        "tl.load(stretch + 1) + tl.load(page + 1)",
        "tl.load(stretch + 1)",
    ),
    "gather of whole pages only": ("gather", "tl.load(page + 2) * RUN", "BLOCK"),
}


def check_with(operation: str, source: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the operation's check with the kernel in *source*."""
    require_triton()
    load_kernels()
    kernel = f"{operation}_pages_kernel"
    faulty = getattr(load_source(source, path), kernel)
    monkeypatch.setattr(module(f"{operation}_pages.triton_kernel"), kernel, faulty)
    case = BY_NAME["distant_slots"]
    CHECKS[operation](case, a_part(case), "triton")


def kernel_source(operation: str) -> str:
    """Return the kernel and what it is made of as one module."""
    kernel = shipped_source(f"{operation}_pages.triton_kernel").replace("from __future__ import annotations\n", "")
    return shipped_source("addressing") + kernel.replace(IMPORT, "")


@pytest.mark.parametrize("operation", CHECKS)
def test_the_kernels_pass_as_they_are(operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_with(operation, kernel_source(operation), tmp_path / "kernel.py", monkeypatch)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, right, wrong = FAULTS[fault]
    source = kernel_source(operation)
    assert source.count(right) == 1

    with pytest.raises(AssertionError):
        check_with(operation, source.replace(right, wrong), tmp_path / "faulty.py", monkeypatch)
