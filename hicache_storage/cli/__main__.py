"""``python -m hicache_storage.cli`` is ``hicache``."""

from __future__ import annotations

import sys

from hicache_storage.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
