"""Gather of pages: see README.md."""
