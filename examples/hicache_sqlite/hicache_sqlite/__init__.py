"""A backend for hicache-storage that keeps its objects in one SQLite file."""

from hicache_sqlite.store import SQLiteOptions, SQLiteStore

__all__ = ["SQLiteOptions", "SQLiteStore"]
