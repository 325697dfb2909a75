"""Objects as files below one folder, shared by any number of threads, processes and hosts that mount it."""

from hicache_storage.backends.file.options import FileOptions
from hicache_storage.backends.file.store import FileStore

__all__ = ["FileOptions", "FileStore"]
