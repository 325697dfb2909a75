"""Steps of the reference engine's scheduler in which all of some requests generate a token."""

from __future__ import annotations

import time

from hicache_storage.engine_integration.reference_engine.client import EngineClient
from hicache_storage.engine_integration.reference_engine.messages import Generate, Token
from hicache_storage.engine_integration.reference_engine.random_shape import RandomShape

SHAPE = RandomShape(num_layers=8, num_heads=8, num_kv_heads=4, head_dim=32, mlp_size=768, vocab_size=2048)
REQUESTS = 8
_PROMPT_TOKENS = 32


def seconds_of_steps(engine: EngineClient, serial: int, steps: int) -> float:
    """Return the seconds of *steps* steps in which `REQUESTS` requests generate, their prompts computed before.

    Args:
        serial: prompts of other serials are others.
    """
    names = [f"{serial}/{number}" for number in range(REQUESTS)]
    for number, name in enumerate(names):
        # One prompt is computed in a step, so those that came first generate more.
        prompt = tuple((serial + number + at) % 199 for at in range(_PROMPT_TOKENS))
        engine.send(Generate(name, prompt, steps + REQUESTS - number, ignore_eos=True))
    ended, seen, start = 0, dict.fromkeys(names, 0), 0.0
    while ended < len(names):
        event = engine.receive()
        assert isinstance(event, Token), event
        seen[event.request_id] += 1
        ended += event.finish_reason is not None
        if not start and all(seen.values()):
            start = time.perf_counter()
    return time.perf_counter() - start
