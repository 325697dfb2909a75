"""Real servers from PyPI packages, on free ports, stopped when they are no longer needed: for tests and the demo."""
