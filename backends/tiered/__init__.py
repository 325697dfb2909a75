"""An ordered list of stores as one: a local folder before a bucket, say."""

from hicache_storage.backends.tiered.options import TieredOptions, TierSpec
from hicache_storage.backends.tiered.store import TieredStore

__all__ = ["TierSpec", "TieredOptions", "TieredStore"]
