"""Gather and scatter on a GPU: first whether the bytes are right, then how fast. One JSON object a line.

    python -m benchmarks.gpu_check                                   a minute or two on one GPU
    TRITON_INTERPRET=1 python -m benchmarks.gpu_check --device cpu   runs every line without a GPU; its figures mean nothing

Exit status 1: a byte was wrong, and nothing was timed. The limits are a device-to-device copy of the same bytes, and for host
pages a copy to or from page-locked memory. A payload byte counts once, though a copy on the device reads and writes it. Calls
that move less than the GPU's last-level cache holds are faster than its memory, ours and the limit alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hicache_storage.kernels import DevicePool, gather_pages, scatter_pages
from hicache_storage.kernels.move import Which

_POISON = 0xA5
_ROUNDS = 15
_IDS = torch.tensor([5, 0, 3])


@dataclass(frozen=True, slots=True)
class Shape:
    """A pool of bytes: *heads* = 0 for MLA; rows in bytes."""

    layers: int
    heads: int
    k_row: int
    v_row: int
    page_tokens: int = 64
    group_heads: int = 0

    @property
    def page_nbytes(self) -> int:
        return self.layers * self.page_tokens * max(self.heads, 1) * (self.k_row + self.v_row)

    @property
    def width(self) -> int:
        return self.group_heads or self.heads

    def pool(self, pages: int, device: torch.device) -> DevicePool:
        """Return a pool of random bytes."""
        slots, heads = pages * self.page_tokens, max(self.heads, 1)
        generator = torch.Generator(device).manual_seed(pages)

        def layer(row: int) -> Tensor:
            size = (slots, heads, row)
            return torch.randint(0, 256, size, dtype=torch.uint8, device=device, generator=generator)

        keys = [layer(self.k_row) for _ in range(self.layers)]
        values = [layer(self.v_row) for _ in range(self.layers if self.v_row else 0)]
        return DevicePool.of_layers(keys, values, self.page_tokens)


CHECKED = {
    "one head group": Shape(3, 8, 256, 256, page_tokens=16),
    "groups of two heads": Shape(3, 8, 256, 256, page_tokens=16, group_heads=2),
    "rows of two widths": Shape(2, 4, 384, 256, page_tokens=5, group_heads=1),
    "latent rows": Shape(3, 0, 1152, 0, page_tokens=16),
    "latent rows with scales": Shape(2, 0, 528, 0, page_tokens=7),
    "rows of six bytes": Shape(2, 3, 6, 6, page_tokens=3, group_heads=1),
    "one of everything": Shape(1, 1, 1, 1, page_tokens=1),
}
TIMED = {
    "60 layers, 8 heads of 128": (Shape(60, 8, 256, 256, group_heads=2), (1, 16, 128)),
    "30 layers, 3 heads of 64": (Shape(30, 3, 128, 128, group_heads=1), (1, 64, 512)),
    "61 layers of 576": (Shape(61, 0, 1152, 0), (1, 64, 512)),
}


def wrong_places(shape: Shape, device: torch.device) -> Iterator[str]:
    """Yield what Triton moves otherwise than plain torch does, whole and in part, on poisoned memory."""
    pool = shape.pool(7, device)
    half = max(shape.page_tokens // 2, 1)
    for layers in (None, range(shape.layers - 1, shape.layers)):
        for tail in (None, half):
            which: Which = {"rows": torch.tensor([2, 0, 3]), "layers": layers, "tail_tokens": tail}
            if not is_gather_right(shape, pool, which):
                yield f"gather, layers {layers}, tail {tail}"
            if not is_scatter_right(shape, pool, which):
                yield f"scatter, layers {layers}, tail {tail}"


def is_gather_right(shape: Shape, pool: DevicePool, which: Which) -> bool:
    size = (4, shape.page_nbytes)
    mine, right = (torch.full(size, _POISON, dtype=torch.uint8, device=pool.device) for _ in range(2))
    gather_pages(pool, _IDS, mine, group_heads=shape.width, impl="triton", **which)
    gather_pages(pool, _IDS, right, group_heads=shape.width, impl="reference", **which)
    return torch.equal(mine, right)


def is_scatter_right(shape: Shape, pool: DevicePool, which: Which) -> bool:
    pages = torch.randint(0, 256, (4, shape.page_nbytes), dtype=torch.uint8, device=pool.device)
    mine, right = poisoned(pool), poisoned(pool)
    scatter_pages(pages, mine, _IDS, group_heads=shape.width, impl="triton", **which)
    scatter_pages(pages, right, _IDS, group_heads=shape.width, impl="reference", **which)
    pairs = zip(mine.keys + mine.values, right.keys + right.values, strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


def poisoned(pool: DevicePool) -> DevicePool:
    """Return a pool of the same shape in which every byte is poison."""
    keys, values = ([torch.full_like(each, _POISON) for each in some] for some in (pool.keys, pool.values))
    return DevicePool.of_layers(keys, values, pool.page_tokens)


def figures(shape: Shape, count: int, device: torch.device) -> Iterator[dict[str, object]]:
    """Yield a row per operation: payload GB/s of the median call, and the share of the limit in the same rounds."""
    pool, pages = shape.pool(count + count // 4 + 1, device), torch.zeros(count, shape.page_nbytes, dtype=torch.uint8)
    ids = torch.randperm(pool.num_pages)[:count]
    width = shape.width
    here, other = pages.to(device, copy=True), pages.to(device, copy=True)
    host = pages.pin_memory() if device.type == "cuda" else pages
    limits: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "gather": (
            lambda: gather_pages(pool, ids, here, group_heads=width, impl="triton"),
            lambda: other.copy_(here),
        ),
        "scatter": (
            lambda: scatter_pages(here, pool, ids, group_heads=width, impl="triton"),
            lambda: other.copy_(here),
        ),
        "gather into page-locked pages": (
            lambda: gather_pages(pool, ids, host, group_heads=width, impl="triton"),
            lambda: host.copy_(here, non_blocking=True),
        ),
        "scatter from page-locked pages": (
            lambda: scatter_pages(host, pool, ids, group_heads=width, impl="triton"),
            lambda: here.copy_(host, non_blocking=True),
        ),
    }
    for operation, (ours, limit) in limits.items():
        pairs = [(seconds(ours, device), seconds(limit, device)) for _ in range(_ROUNDS + 2)][2:]
        own = statistics.median(pair[0] for pair in pairs)
        yield {
            "operation": operation,
            "pages": count,
            "page_nbytes": shape.page_nbytes,
            "gb_s": round(pages.nbytes / own / 1e9, 2),
            "limit_gb_s": round(pages.nbytes / statistics.median(pair[1] for pair in pairs) / 1e9, 2),
            "share": round(statistics.median(limit / mine for mine, limit in pairs), 3),
        }


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return how long *call* takes, with everything that it has queued on the device."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call] # torch's gap
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script itself")
    device = torch.device(parser.parse_args(arguments).device)
    on_gpu = device.type == "cuda"
    place = {"device": torch.cuda.get_device_name() if on_gpu else "cpu", "torch": torch.__version__}
    failed = 0
    for name, shape in CHECKED.items():
        wrong = list(wrong_places(shape, device))
        failed += bool(wrong)
        print(json.dumps({"check": name, "ok": not wrong, "wrong": wrong, **place}), flush=True)
    if failed:
        return 1
    for name, (shape, counts) in TIMED.items():
        sizes = counts if on_gpu else counts[:1]
        timed = shape if on_gpu else Shape(2, shape.heads, shape.k_row, shape.v_row, 4, shape.group_heads)
        for count in sizes:
            for row in figures(timed, count, device):
                print(json.dumps({"shape": name, **row, **place}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
