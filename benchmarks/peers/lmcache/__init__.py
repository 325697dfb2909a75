"""Driver and environment of one peer; see benchmarks/peers/README.md."""
