"""A store node: a process that gives memory to Mooncake and holds objects in it until it is told to end.

    python -m hicache_storage.backends.mooncake.node --master 10.0.0.1:50051 --memory 64GiB

It takes the backend's environment variables as well, such as MOONCAKE_MASTER, MOONCAKE_GLOBAL_SEGMENT_SIZE,
MOONCAKE_LOCAL_HOSTNAME and MOONCAKE_PROTOCOL. On SIGTERM or SIGINT it takes leave of the master and ends.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence

from hicache_storage.backends.mooncake.errors import BACKEND
from hicache_storage.backends.mooncake.options import MooncakeOptions
from hicache_storage.backends.mooncake.sdk import load, look_for_master, new_client, set_up
from hicache_storage.config import Setting, from_mapping, resolve
from hicache_storage.errors import ConfigError

_LEAST_MEMORY_NBYTES = 16 << 20

_FLAGS = {
    "master": "master_server_address",
    "memory": "global_segment_nbytes",
    "metadata-server": "metadata_server",
    "hostname": "local_hostname",
    "protocol": "protocol",
    "device": "device_name",
    "tenant": "tenant_id",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes; return 0 then, 2 for wrong options or no SDK, 3 if the master cannot be reached."""
    try:
        options = _options(sys.argv[1:] if arguments is None else arguments)
        load(options.deadline_s, options.log_level)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        look_for_master(options.master, options.deadline_s)
    except OSError as error:
        sys.stderr.write(f"no Mooncake master at {options.master}: {error}\n")
        return 3
    ended = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ended)  # Before the SDK makes threads, so that none of them takes one.
    client = new_client(options.deadline_s, options.log_level)
    code = set_up(client, options)
    if code:
        sys.stderr.write(f"Mooncake cannot be set up ({code}): master {options.master}\n")
        return 3
    sys.stdout.write(f"node of {options.master} holds {options.global_segment_nbytes} bytes\n")
    sys.stdout.flush()
    signal.sigwait(ended)
    client.close()
    return 0


def _options(arguments: Sequence[str]) -> MooncakeOptions:
    parser = argparse.ArgumentParser(prog="python -m hicache_storage.backends.mooncake.node", description=__doc__)
    for flag, name in _FLAGS.items():
        parser.add_argument(f"--{flag}", dest=name, help=MooncakeOptions.__dataclass_fields__[name].metadata["doc"])
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    sources: list[Mapping[str, Setting]] = [from_mapping(given, "command line")]
    options, _ = resolve(MooncakeOptions, BACKEND, sources)
    if options.global_segment_nbytes < _LEAST_MEMORY_NBYTES:
        raise ConfigError("a node needs memory, at least 16MiB: --memory 64GiB or MOONCAKE_GLOBAL_SEGMENT_SIZE")
    return options


if __name__ == "__main__":
    sys.exit(main())
