"""`hicache demo`: KV of a real model, written by one topology, read by others, in processes of their own.

`command` is the command line, `steps` the order of events; `prefill`, `writer` and `reader` are entry
points of fresh processes, which get a `job` and answer through `processes`.
"""
