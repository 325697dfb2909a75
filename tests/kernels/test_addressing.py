"""Products of an index and a distance do not wrap (field fault F19)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.kernels.cases import DEVICE
from tests.kernels.triton_modules import load_kernels, load_source, require_triton, shipped_source

PROBE = """
import triton
import triton.language as tl

from hicache_storage.kernels.addressing import offset_of


@triton.jit
def probe(out, indices, distance):
    tl.store(out, offset_of(tl.load(indices), distance))
"""
CASES = [
    (319, 7_864_320, 2_508_718_080),
    (1, 2**31 - 1, 2**31 - 1),
    (2, 2**30, 2**31),
    (3, 715_827_883, 2**31 + 1),
    (65_536, 65_535, 2**32 - 65_536),
    (65_536, 65_536, 2**32),
    (65_537, 65_536, 2**32 + 65_536),
    (2**31 - 1, 2**31 - 1, 2**62 - 2**32 + 1),
]


def offset_by_kernel(source: str, path: Path, index: int, distance: int) -> int:
    require_triton()
    load_kernels()
    probe = load_source(source, path).probe
    out = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    indices = torch.tensor([index], dtype=torch.int32, device=DEVICE)
    probe[(1,)](out, indices, distance)
    return int(out)


@pytest.mark.parametrize(("index", "distance", "offset"), CASES)
def test_offsets_of_32_bit_indices_have_64_bits(tmp_path: Path, index: int, distance: int, offset: int) -> None:
    assert offset_by_kernel(PROBE, tmp_path / "probe.py", index, distance) == offset


def test_a_helper_without_the_cast_is_caught(tmp_path: Path) -> None:
    imported = "from hicache_storage.kernels.addressing import offset_of\n"
    faulty = shipped_source("addressing").replace("tl.cast(index, tl.int64)", "index")
    source = faulty + PROBE.replace(imported, "")

    assert faulty != shipped_source("addressing")
    assert offset_by_kernel(source, tmp_path / "faulty_probe.py", 319, 7_864_320) == -1_786_249_216
