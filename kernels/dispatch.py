"""Which implementation moves the pages, and why."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args

from torch import Tensor

from hicache_storage.errors import ConfigError
from hicache_storage.kernels.pool import DevicePool

Impl = Literal["auto", "triton", "reference"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation that runs.

    Attributes:
        impl: ``triton`` or ``reference``.
        reasons: why each implementation that was not chosen was not, ``"name: why"``.
    """

    impl: str
    reasons: tuple[str, ...]


def explain(pool: DevicePool, pages: Tensor, impl: Impl = "auto") -> Choice:
    """Return what a gather or scatter between *pool* and *pages* would run, and why nothing else.

    ``auto`` takes Triton on a GPU and plain torch elsewhere.

    Raises:
        ConfigError: *impl* is unknown, or cannot run here.
    """
    if impl not in get_args(Impl):
        raise ConfigError(f"impl = {impl!r}: expected one of {', '.join(get_args(Impl))}")
    why_not = {name: _why_not_asked(name, pool, impl) for name in _CHECKS}
    for name, check in _CHECKS.items():
        why_not[name] = why_not[name] or check(pool, pages)
        if not why_not[name]:
            others = (other for other in _CHECKS if other != name)
            return Choice(name, tuple(f"{other}: {why_not[other] or f'{name} comes first'}" for other in others))
    raise ConfigError(f"impl = {impl!r} cannot run: " + "; ".join(f"{name}: {why}" for name, why in why_not.items()))


def _why_not_asked(name: str, pool: DevicePool, impl: Impl) -> str:
    if impl not in {"auto", name}:
        return f"{impl} was asked for"
    if impl == "auto" and name == "triton" and pool.device.type == "cpu":
        return "on a CPU plain torch is faster"
    return ""


def _why_not_triton(pool: DevicePool, pages: Tensor) -> str:
    if find_spec("triton") is None:
        return "triton is not installed (pip install 'hicache-storage[engine]')"
    if pool.device.type == "cpu" and not _interpreted():
        return "the pool is on the CPU, and TRITON_INTERPRET=1 was not set when the kernels were loaded"
    if pool.device.type not in {"cpu", "cuda"}:
        return f"the pool is on {pool.device}, triton runs on CUDA and ROCm"
    if pages.device != pool.device and not pages.is_pinned():
        return f"the pages are on {pages.device} and not page-locked, the pool is on {pool.device}"
    return ""


def _why_not_reference(pool: DevicePool, pages: Tensor) -> str:
    if pages.device != pool.device:
        return f"the pages are on {pages.device}, the pool is on {pool.device}"
    return ""


def _interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter; triton decides that once, when a kernel is defined."""
    from triton.runtime.interpreter import InterpretedFunction  # noqa: PLC0415 - loads triton

    from hicache_storage.kernels.addressing import offset_of  # noqa: PLC0415 - loads triton

    return isinstance(offset_of, InterpretedFunction)


# In the order in which `auto` tries them. Asking whether Triton can run may load it.
_CHECKS = {"triton": _why_not_triton, "reference": _why_not_reference}
