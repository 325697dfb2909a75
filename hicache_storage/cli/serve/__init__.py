"""`hicache serve`: an OpenAI-compatible HTTP server in front of an engine.

command      flags in, a running server, an exit status
options      what the flags mean, as values; which of them contradict each other
setup        from options to an engine's configuration: model, grid, store
lifecycle    start, serve, drain, stop
app          routes, limits, errors as JSON
completions  /v1/completions and /v1/chat/completions
admin        /flush_cache and /hicache/storage-backend, and who may use them
link         the event loop's side of an engine; `engine.EngineClient` is what an engine gives
"""
