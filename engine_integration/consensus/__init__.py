"""rank_consensus_checker: says which rank first called, was given or answered something else than the others. Torch-free."""

from hicache_storage.engine_integration.consensus.checker import Checker
from hicache_storage.engine_integration.consensus.decorator import rank_consensus
from hicache_storage.engine_integration.consensus.divergence import Differs, Divergence
from hicache_storage.engine_integration.consensus.options import ConsensusOptions

__all__ = ["Checker", "ConsensusOptions", "Differs", "Divergence", "rank_consensus"]
