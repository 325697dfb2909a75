"""A trace of requests through real tiers without a model: what each tier would have had of it. Torch-free."""

from hicache_storage.engine_integration.replay.line import TraceLine
from hicache_storage.engine_integration.replay.options import KEY_SCHEMES, KeyScheme, ReplayOptions
from hicache_storage.engine_integration.replay.report import InstanceReport, Moved, Report, Served
from hicache_storage.engine_integration.replay.simulation import Replay
from hicache_storage.engine_integration.replay.size import TierSize
from hicache_storage.engine_integration.replay.trace import Trace, TraceRequest, TraceSummary

__all__ = [
    "KEY_SCHEMES",
    "InstanceReport",
    "KeyScheme",
    "Moved",
    "Replay",
    "ReplayOptions",
    "Report",
    "Served",
    "TierSize",
    "Trace",
    "TraceLine",
    "TraceRequest",
    "TraceSummary",
]
