"""A KV connector for vLLM: stock vLLM's KV blocks as pages of any of our stores. See docs/engines.md.

`connector` is the class that vLLM loads; only it, `release` and `deployment` know vLLM's names.
"""
