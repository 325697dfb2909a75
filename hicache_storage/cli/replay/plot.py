"""The picture of a replay: how much of the prompts each tier had, from the first request to the last."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hicache_storage.engine_integration.replay import Served
from hicache_storage.errors import ConfigError

_MOST_BUCKETS = 60


def check(path: Path) -> None:
    """Raise `ConfigError` if `draw` could not draw to *path*, before a long replay rather than behind it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install matplotlib")
    formats = sorted(_figures().Figure().canvas.get_supported_filetypes())
    if path.suffix.lower().removeprefix(".") not in formats:
        raise ConfigError(f"--plot {path}: its name should end with one of {', '.join(formats)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.absolute().parent}")


def draw(path: Path, served: Sequence[Served], title: str) -> None:
    """Write a picture in the format that *path* ends with.

    Raises:
        ConfigError: *path* cannot be written.
    """
    per_bucket = -(-len(served) // _MOST_BUCKETS)
    starts = range(0, len(served), per_bucket)
    shares = [hit_shares(served[start : start + per_bucket]) for start in starts]
    figure = _figures().Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    middles = [start + min(per_bucket, len(served) - start) / 2 for start in starts]
    hits = [[share[tier] for share in shares] for tier in range(3)]
    axes.stackplot(middles, hits, labels=("device", "host", "store"), alpha=0.85)
    axes.plot(middles, [share[3] for share in shares], color="black", linestyle=":", label="reusable at best")
    axes.set(xlabel="request", ylabel="% of prompt tokens", title=title, ylim=(0, 100))
    axes.legend(loc="upper left", ncols=4)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}") from error


def _figures() -> ModuleType:
    """Return matplotlib's module of figures, which the command line must start without."""
    return importlib.import_module("matplotlib.figure")


def hit_shares(served: Sequence[Served]) -> tuple[float, float, float, float]:
    """Return per cent of the prompts: hits of device, host and store, and what was reusable at best."""
    tokens = sum(one.prompt_tokens for one in served) or 1
    cached = [one.cached for one in served if one.cached is not None]
    parts = (
        sum(one.device for one in cached),
        sum(one.host for one in cached),
        sum(one.store for one in cached),
        sum(one.reusable for one in served),
    )
    device, host, store, reusable = (100 * part / tokens for part in parts)
    return device, host, store, reusable
