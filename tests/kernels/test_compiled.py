"""The kernels compile for a GPU, whether one is here or not, and move 16 bytes at a time where all is aligned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.kernels.triton_modules import require_triton

# What moves by one instruction: eight bytes twice, or the element itself. Tables are read as single 64-bit numbers.
WIDTHS = {16: "v2.b64", 8: "b64", 4: "b32", 2: "b16", 1: "b8"}
PROGRAM = """
import json, re, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from hicache_storage.kernels.gather_pages.triton_kernel import gather_pages_kernel
from hicache_storage.kernels.scatter_pages.triton_kernel import scatter_pages_kernel

ELEMENTS = {16: "*i64", 8: "*i64", 4: "*i32", 2: "*i16", 1: "*u8"}

def stores(kernel, unit, run, slot):
    signature = dict(zip(kernel.arg_names, [ELEMENTS[unit], "*i64", "*i64", *["constexpr"] * 4]))
    constants = dict(zip(kernel.arg_names[3:], (run, slot, unit, 1024)))
    aligned = {(i,): [["tt.divisibility", 16]] for i in ((0, 1, 2) if unit == 16 else (1, 2))}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    ptx = compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    return sorted(set(re.findall(r"st\\.global\\.([.\\w]*)", ptx)))

kernels = (gather_pages_kernel, scatter_pages_kernel)
print(json.dumps([[stores(kernel, *case) for kernel in kernels] for case in json.loads(sys.argv[1])]))
"""


def test_the_widest_aligned_access_is_used_and_no_wider(tmp_path: Path) -> None:
    require_triton()
    cases = [(16, 256, 256), (16, 66, 82), (8, 2, 4), (4, 4, 4), (1, 8, 8)]  # unit, run, slot
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}

    output = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(cases)], env=environment, capture_output=True, text=True, check=True
    ).stdout

    assert json.loads(output) == [[[WIDTHS[unit]]] * 2 for unit, _, _ in cases]
