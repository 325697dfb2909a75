"""Connections to a host of several addresses, in the time that is left for all of them together."""

from __future__ import annotations

import socket
from collections.abc import Callable


def connect(host: str, port: int, left_s: Callable[[], float]) -> socket.socket:
    """Return a connection to the first address of *host* that answers; its timeout is what is left then.

    Each address has an equal share of the time that is left when its turn comes.

    Args:
        left_s: seconds that are left, above 0; raises if there are none.

    Raises:
        OSError: what the last address said, or that there is none.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"{host} has no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(left_s() / (len(addresses) - tried))
            connection.connect(address)
            connection.settimeout(left_s())
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure
