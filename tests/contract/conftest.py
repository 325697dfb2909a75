"""Lets the tests of this folder, and the processes they start, import `folder_store`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
