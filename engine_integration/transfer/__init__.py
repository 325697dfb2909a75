"""Moving pages between an engine's device pool and the host pool, beside the engine's own work.

`Backup` moves device pages to host pages, `Load` host pages to device pages layer by layer. On a CPU the same
classes run in the same order; only streams and events are left out.
"""

from hicache_storage.engine_integration.transfer.backup import Backup
from hicache_storage.engine_integration.transfer.events import LayerEvents
from hicache_storage.engine_integration.transfer.load import Load
from hicache_storage.engine_integration.transfer.options import Route, TransferOptions
from hicache_storage.engine_integration.transfer.request import LayerTransfer, Transfer

__all__ = ["Backup", "LayerEvents", "LayerTransfer", "Load", "Route", "Transfer", "TransferOptions"]
