"""When and what: everything between an engine's scheduler and an object store.

`page_store` is the L3 client; `reference_engine` is a small model that proves the rest on any machine.
Importing this loads no torch.
"""
