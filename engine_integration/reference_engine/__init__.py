"""A small real engine that proves the cache on any machine: readable and exact, not fast.

A decoder, cut into pipeline stages and tensor-parallel shares, with the per-layer pools that engines keep, a scheduler
with continuous batching and chunked prefill on top of the cache's controller, and a process for each rank.

    client        the parent's side: starts the ranks, sends commands, receives events
    launcher      the process between: forks the ranks, says which one died
    rank          one rank: commands in, one scheduler step, events out
    scheduler     which request computes what; the same on every rank
    forward       one rank's part of computing it, through the stages
    decoder, llama, latent, weights, partition, model_config: the model
"""
