"""Choosing the next token. Equal logits, seeds and positions give equal tokens, whatever else the engine computes."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from hicache_storage.engine_integration.reference_engine.pieces import Sampling

_ONE = 1 << 53


def choose(logits: Tensor, sampling: Sampling, position: int) -> int:
    """Return the token that follows.

    Args:
        logits: `[vocab_size]`. Where a restore failed they may be anything; the answer is some token then.
        position: of the token in its sequence: draws do not depend on how the sequence was computed.
    """
    if sampling.temperature == 0:
        return int(logits.argmax())
    likely, tokens = torch.sort(torch.softmax(logits.double().cpu() / sampling.temperature, dim=-1), descending=True)
    reached = likely.cumsum(-1)
    # At least one token; the last one that is needed to reach the share counts.
    kept = 1 + int((reached < sampling.top_p).sum().clamp(max=len(likely) - 1))
    draw = uniform(sampling.seed, position) * float(reached[kept - 1])
    chosen = int((reached[:kept] <= draw).sum().clamp(max=kept - 1))
    return int(tokens[chosen])


def uniform(seed: int, position: int) -> float:
    """Return a number in ``[0, 1)`` that is random in *seed* and *position*, and nothing else."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / _ONE
