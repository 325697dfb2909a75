"""An engine of a few lines that speaks the messages: its answers follow from the prompt, and it fails on demand."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TypeVar

from hicache_storage.engine_integration.reference_engine.messages import (
    Abort,
    Answered,
    Attach,
    Command,
    Detach,
    Event,
    Failed,
    Flush,
    Generate,
    Report,
    Shutdown,
    Token,
)
from hicache_storage.errors import HiCacheError, RankFailure
from tests.cli.serve.toy_tokenizer import EOS

C = TypeVar("C", bound=Command)

COUNTERS = {
    "pages_hit": 7,
    "read_failed.CorruptObject": 2,
    "read_failed.StoreUnavailable": 1,
    "cached_tokens.device": 5,
    "now.host_pages": 12,
    "times.store_call.read.done.5": 3,
    "times.store_call.read.done.500": 2,
    "times.store_call.read.done.us": 610_000,
    "times.store_call.read.StoreUnavailable.more": 1,
    "times.store_call.read.StoreUnavailable.us": 31_000_000,
    "store_metrics.requests.read.hit.file": 6,
    "store_metrics.requests.read.CorruptObject.file": 1,
    'store_metrics.requests.exists.miss.a.b"c': 4,
    "store_metrics.bytes.read.file": 4096,
    "store_metrics.seconds.read.0.file": 2,
    "store_metrics.seconds.read.14.file": 1,
    "store_metrics.seconds.read.us.file": 11_500_000,
    "store_metrics.part.0.requests.read.miss.file": 5,
    "store_metrics.part.1.requests.read.hit.file": 5,
    "store_metrics.part.1.bytes.read.file": 320,
    "store_metrics.part.1.seconds.read.2.file": 1,
    "store_metrics.part.1.seconds.read.us.file": 2_000,
}
_PATIENCE_S = 60.0


class FakeEngine:
    """Answers a prompt with its own tokens, again and again, up to an EOS or the length.

    A prompt that begins with ``!hold`` gets its first token and then none until `release`; ``!refuse`` and ``!large`` are
    refused, ``!abort`` is ended by the engine after a token.

    Attributes:
        commands: everything that was sent, in order.
        stuck: set when a command waits for an engine that takes none.
        refuses_stores: why no store is attached; None if any is.
    """

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.closed = threading.Event()
        self.stuck = threading.Event()
        self.refuses_stores: str | None = None
        self._events: SimpleQueue[Event | HiCacheError | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._held: dict[str, Generate] = {}
        self._is_mute = False
        self._is_stuck = False

    def send(self, command: Command) -> None:
        if self._is_stuck and not isinstance(command, Shutdown):
            self.stuck.set()
            self.closed.wait(_PATIENCE_S)
            return
        with self._changed:
            self.commands.append(command)
            if not self._is_mute:
                self._obey(command)
            self._changed.notify_all()

    def receive(self) -> Event | None:
        event = self._events.get()
        if isinstance(event, HiCacheError):
            raise event
        return event

    def close(self, timeout_s: float) -> None:
        self.send(Shutdown())
        self._events.put(None)
        self.closed.set()

    def be_stuck(self) -> None:
        """Take no command any more but the one to shut down: whoever sends another waits until the engine is closed."""
        self._is_stuck = True

    def release(self) -> None:
        """Go on with what is held."""
        with self._changed:
            for request in self._held.values():
                self._go_on(request, 1)
            self._held.clear()

    def die(self, reason: str) -> None:
        """End as an engine does whose rank was killed."""
        self._events.put(RankFailure("serve", {0: reason}))

    def be_mute(self) -> None:
        """Take commands and answer none, as an engine does that hangs."""
        with self._changed:
            self._is_mute = True

    def wait_for(self, kind: type[C], number: int = 1) -> list[C]:
        """Return the first *number* commands of a kind, once they have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._of(kind)) >= number, _PATIENCE_S), self.commands
            return self._of(kind)[:number]

    def _of(self, kind: type[C]) -> list[C]:
        return [command for command in self.commands if isinstance(command, kind)]

    def _obey(self, command: Command) -> None:
        match command:
            case Generate():
                self._generate(command)
            case Abort():
                if self._held.pop(command.request_id, None) is not None:
                    self._events.put(Token(command.request_id, -1, "abort"))
            case Report():
                self._events.put(Answered(command.command_id, counters=COUNTERS))
            case Attach() if self.refuses_stores is not None:
                self._events.put(Answered(command.command_id, error=self.refuses_stores))
            case Attach() if "broken" in (command.extra_config or ""):
                self._events.put(Answered(command.command_id, error="the store cannot be reached"))
            case Attach() if "unfit" in (command.extra_config or ""):
                self._events.put(Answered(command.command_id, error="no such folder", is_wrong_config=True))
            case Attach() | Detach() | Flush():
                self._events.put(Answered(command.command_id))
            case Shutdown():
                pass

    def _generate(self, request: Generate) -> None:
        text = bytes(token for token in request.tokens if token < EOS)
        if text.startswith((b"!refuse", b"!large")):
            self._events.put(Failed(request.request_id, "no room for it", text.startswith(b"!large")))
        elif text.startswith(b"!hold"):
            self._held[request.request_id] = request
            self._token(request, 0)
        elif text.startswith(b"!abort"):
            self._token(request, 0)
            self._events.put(Token(request.request_id, -1, "abort"))
        else:
            self._go_on(request, 0)

    def _go_on(self, request: Generate, at: int) -> None:
        while not self._token(request, at):
            at += 1

    def _token(self, request: Generate, at: int) -> bool:
        """Tell of the answer's token number *at*; return whether it is the last."""
        token = request.tokens[at % len(request.tokens)]
        stops = {*request.stop_tokens, *(() if request.ignore_eos else (EOS,))}
        reason = "stop" if token in stops else "length" if at + 1 == request.max_new_tokens else None
        cached = (1, 2, 3) if at == 0 and len(request.tokens) > 6 else (0, 0, 0)
        self._events.put(Token(request.request_id, token, reason, **dict(zip(_CACHED, cached, strict=True))))
        return reason is not None


_CACHED = ("cached_device", "cached_host", "cached_store")
