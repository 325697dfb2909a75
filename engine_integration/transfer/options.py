"""How pages travel, and the rule by which that is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from hicache_storage.errors import ConfigError
from hicache_storage.kernels import Impl

Route = Literal["auto", "direct", "staged"]
"""``direct``: one kernel moves the bytes between pool and host pages. ``staged``: a kernel and the device's copy
engine, with a buffer on the device between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferOptions:
    """How pages travel.

    Attributes:
        route: see `Route`; ``auto`` follows the rule of `Backup` or `Load`.
        impl: the kernels' implementation.
        staging_nbytes: size of each of the two staging buffers on the device; at least one page or one block fits
            whatever it is.
        piece_nbytes: a staged load copies enough layers at a time that a piece has this many bytes: less, and the
            bus waits for the next copy; more, and the first layer waits for its neighbours.
    """

    route: Route = "auto"
    impl: Impl = "auto"
    staging_nbytes: int = 64 << 20
    piece_nbytes: int = 1 << 20

    def __post_init__(self) -> None:
        if self.route not in get_args(Route):
            raise ConfigError(f"route = {self.route!r}: expected one of {', '.join(get_args(Route))}")
        if self.staging_nbytes < 1 or self.piece_nbytes < 1:
            raise ConfigError(
                f"staging_nbytes = {self.staging_nbytes} and piece_nbytes = {self.piece_nbytes} must be above 0"
            )


def pages_tensor(pages: Iterable[int]) -> Tensor:
    """Return page ids as the kernels take them: int64 ``[P]``, on the CPU, where they are checked without waiting."""
    return torch.tensor(list(pages), dtype=torch.int64)
