"""One rank's process, from the fork to its end."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from hicache_storage.engine_integration.parallel.agree import agree_all
from hicache_storage.engine_integration.reference_engine import messages, outcome
from hicache_storage.engine_integration.reference_engine.compared import compared
from hicache_storage.engine_integration.reference_engine.engine import EngineRank
from hicache_storage.engine_integration.reference_engine.engine_config import EngineConfig
from hicache_storage.engine_integration.reference_engine.frames import FrameWriter, read_frame
from hicache_storage.engine_integration.reference_engine.messages import Shutdown
from hicache_storage.engine_integration.reference_engine.outcome import Broken, Ready
from hicache_storage.engine_integration.reference_engine.peers import NoPeers, Peers
from hicache_storage.engine_integration.reference_engine.process_peers import ProcessPeers
from hicache_storage.engine_integration.reference_engine.serving import Inbox, serve
from hicache_storage.errors import ConfigError

_PR_SET_PDEATHSIG = 1
_GRACE_S = 30.0
"""How long an engine whose parent is gone may take to write what is under way."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankPipes:
    """What a rank inherits.

    Attributes:
        commands, events: of the first rank; the others leave them alone.
        last_words: where a rank says why it raised.
        rendezvous: an empty file through which the ranks find each other.
    """

    commands: int
    events: int
    last_words: int
    rendezvous: int


def run_rank(config: EngineConfig, rank: int, pipes: RankPipes) -> int:
    """Be one rank until the end; return the exit status of its process."""
    try:
        _run(config, rank, pipes)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent hears of it
        _log.exception("rank.failed rank=%d", rank)
        _say_why(pipes, error)
        return 1
    return 0


def _say_why(pipes: RankPipes, error: BaseException) -> None:
    FrameWriter(pipes.last_words).write(outcome.encode(Broken.of(error)))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when *parent*, which has forked it, has ended, however that ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It ended before the kernel was told. Alone, a rank would wait for the others until its deadline.
        os.kill(os.getpid(), signal.SIGKILL)


def _run(config: EngineConfig, rank: int, pipes: RankPipes) -> None:
    topology = config.ranks
    torch.set_num_threads(config.threads or max(1, torch.get_num_threads() // topology.tp))
    if config.device == "cuda":
        _use_gpu(rank, topology.tp * topology.pp)
    peers = _connect(config, rank, pipes.rendezvous)
    with compared(peers, lambda failure: _say_why(pipes, failure)):
        _serve(config, rank, pipes, peers)
    peers.close()
    _log.info("rank.ended rank=%d", rank)


def _use_gpu(rank: int, ranks: int) -> None:
    found = torch.cuda.device_count()
    if found < ranks:
        raise ConfigError(f"device = 'cuda' needs a GPU for each rank, {ranks} in all; torch sees {found}")
    torch.cuda.set_device(rank)


def _serve(config: EngineConfig, rank: int, pipes: RankPipes, peers: Peers) -> None:
    engine = EngineRank(config, peers)
    agree_all(peers.group, "ready", lambda: True)
    inbox: Inbox = SimpleQueue()
    voice = FrameWriter(pipes.events)
    if rank == 0:
        threading.Thread(target=_listen, args=(pipes.commands, inbox), name="hicache-commands", daemon=True).start()
        voice.write(outcome.encode(Ready()))
    _log.info("rank.ready rank=%d of=%s", rank, config.ranks.name)
    serve(engine, peers, inbox, lambda event: voice.write(messages.encode(event)))


def _connect(config: EngineConfig, rank: int, rendezvous: int) -> Peers:
    topology = config.ranks
    if topology.tp * topology.pp == 1:
        return NoPeers()
    return ProcessPeers(
        topology,
        rank,
        rendezvous=rendezvous,
        uses_gpu=config.device == "cuda",
        timeout_s=config.timeout_s,
        background_timeout_s=config.background_timeout_s,
    )


def _listen(commands: int, inbox: Inbox) -> None:
    """Pass on each command; when the parent is gone, end the engine, in order if that takes a moment only."""
    while (command := read_frame(commands)) is not None:
        inbox.put(command)
    inbox.put(messages.encode(Shutdown()))
    time.sleep(_GRACE_S)
    os._exit(1)
