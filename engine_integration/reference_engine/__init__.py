"""A small real engine that proves the cache on any machine: readable and exact, not fast.

A decoder, cut into pipeline stages and tensor-parallel shares, with the per-layer pools that engines keep, a scheduler
with continuous batching and chunked prefill on top of the cache's controller, and a process for each rank.

    engine_config, sizes        what is configured, and what follows from it before anything is loaded
    client                      the parent's side: starts the ranks, sends commands, receives events
    launcher                    the process between: forks the ranks, says which one died
    rank, serving, engine       one rank: commands in, a scheduler's step, events out
    scheduler, text             which request computes what; the same on every rank
    rank_tiers, store_parts     what the rank caches, which objects are its own
    forward, sampling           its part of computing a batch, through the stages
    decoder, llama, latent      the models; weights, partition and model_config belong to them

`messages` is what a server and an engine say to each other. `client` and all that it imports are free of torch.
"""
