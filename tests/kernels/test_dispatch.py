"""Which implementation runs, and why."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hicache_storage.errors import ConfigError
from hicache_storage.kernels import Choice, DevicePool, dispatch, explain, gather_pages
from tests.kernels.cases import BY_NAME, DEVICE, build
from tests.kernels.triton_modules import load_kernels, require_triton


@pytest.fixture
def pool() -> DevicePool:
    return build(BY_NAME["mla"], seed=1).pool


@pytest.fixture
def pages(pool: DevicePool) -> torch.Tensor:
    return torch.zeros(1, pool.page_format(0).page_nbytes, dtype=torch.uint8, device=DEVICE)


def test_a_cpu_runs_plain_torch_and_a_gpu_triton(pool: DevicePool, pages: torch.Tensor) -> None:
    on_cpu = Choice("reference", ("triton: on a CPU plain torch is faster",))
    on_gpu = Choice("triton", ("reference: triton comes first",))

    assert explain(pool, pages) == (on_cpu if DEVICE == "cpu" else on_gpu)


def test_what_is_asked_for_runs(pool: DevicePool, pages: torch.Tensor) -> None:
    require_triton()
    load_kernels()

    assert explain(pool, pages, "reference") == Choice("reference", ("triton: reference was asked for",))
    assert explain(pool, pages, "triton") == Choice("triton", ("reference: triton was asked for",))


def test_a_choice_that_does_not_exist_is_refused(pool: DevicePool, pages: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="impl = 'cuda': expected one of auto, triton, reference"):
        explain(pool, pages, "cuda")  # type: ignore[arg-type]


def test_asking_for_triton_where_it_is_not_installed_says_what_to_install(
    pool: DevicePool, pages: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "find_spec", lambda _name: None)

    with pytest.raises(ConfigError, match=r"triton is not installed \(pip install 'hicache-storage\[engine\]'\)"):
        explain(pool, pages, "triton")


def test_asking_for_triton_on_a_cpu_without_its_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_triton()
    monkeypatch.setattr(dispatch, "_interpreted", lambda: False)
    pool = DevicePool.of_stacked(torch.zeros(1, 4, 8), 4)
    pages = torch.zeros(1, 128, dtype=torch.uint8)

    with pytest.raises(ConfigError, match="the pool is on the CPU, and TRITON_INTERPRET=1 was not set"):
        gather_pages(pool, torch.tensor([0]), pages, group_heads=0, impl="triton")


def test_on_a_cpu_triton_is_never_loaded() -> None:
    program = """
import sys, torch
from hicache_storage.kernels import DevicePool, explain, gather_pages
pool = DevicePool.of_stacked(torch.zeros(1, 4, 8), 4)
pages = torch.zeros(1, 128, dtype=torch.uint8)
gather_pages(pool, torch.tensor([0]), pages, group_heads=0)
explain(pool, pages), explain(pool, pages, "reference")
print(*sorted({"triton"} & sys.modules.keys()))
"""
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert loaded == []
