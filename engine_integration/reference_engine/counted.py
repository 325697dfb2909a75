"""Names of what an engine counts and reports, beside what its tiers count; see `hicache_storage.telemetry`."""

from __future__ import annotations

PROMPT_TOKENS = "prompt_tokens"
CACHED_DEVICE = "cached_tokens.device"
CACHED_HOST = "cached_tokens.host"
CACHED_STORE = "cached_tokens.store"
TOKENS_COMPUTED = "tokens_computed"
TOKENS_GENERATED = "tokens_generated"
PREEMPTIONS = "preemptions"
RESTORES_FAILED = "restores_failed"
REQUESTS_REFUSED = "requests_refused"

REQUESTS_RUNNING = "now.requests_running"
REQUESTS_WAITING = "now.requests_waiting"
DEVICE_PAGES = "now.device_pages"
DEVICE_PAGES_HELD = "now.device_pages_held"
HOST_PAGES = "now.host_pages"
HOST_PAGES_HELD = "now.host_pages_held"
STORE_ATTACHED = "now.store_attached"
"""What is so at the moment of the report, of the first rank; everything else was counted since the start."""
