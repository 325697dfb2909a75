"""Measurements of this project beside physical limits and peers: ``python -m benchmarks list``."""
