"""Scatter of pages: see README.md."""
