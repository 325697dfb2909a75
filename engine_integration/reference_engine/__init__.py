"""A small real engine that proves the cache on any machine: readable and exact, not fast.

A decoder of the Llama family, cut into pipeline stages and tensor-parallel shares, with the per-layer
K and V pools that engines keep. `model_folder` finds and prepares a model, `partition` says what a rank
owns, `weights` loads that share, `llama` computes, `relayout` moves pages between pools and host pages.
"""
