"""Moving rows between two layouts with nothing but the standard library."""

from __future__ import annotations

from math import gcd
from typing import Literal

from hicache_storage.layout import RowCopy

_FORMATS: dict[int, Literal["Q", "I", "H", "B"]] = {8: "Q", 4: "I", 2: "H", 1: "B"}


def copy_rows(src: memoryview, dst: memoryview, copy: RowCopy) -> None:
    """Carry out *copy* from *src* to *dst*, both flat bytes.

    Cost: every byte once. One strided assignment for each machine word of a row moves that word of all
    rows, so that the interpreter works per word of a row and not per row.
    """
    rows, width, stride = copy.rows, copy.row_nbytes, copy.src_stride
    span = (rows - 1) * stride + width
    source = src[copy.src_offset : copy.src_offset + span]
    target = dst[copy.dst_offset : copy.dst_offset + rows * width]
    if rows == 1:
        target[:] = source
        return
    unit = gcd(width, stride, 8)
    if rows <= width // unit:
        for row in range(rows):
            target[row * width : (row + 1) * width] = source[row * stride : row * stride + width]
        return
    words_in, words_out = source.cast(_FORMATS[unit]), target.cast(_FORMATS[unit])
    columns, step = width // unit, stride // unit
    for column in range(columns):
        words_out[column::columns] = words_in[column : column + (rows - 1) * step + 1 : step]
