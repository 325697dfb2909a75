"""The event loop's side of an engine: commands go out in order, events come back to whoever waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import TypeAlias

from hicache_storage.cli.serve.api_error import ApiError, unavailable
from hicache_storage.cli.serve.engine import EngineClient
from hicache_storage.engine_integration.reference_engine.messages import (
    Abort,
    Answered,
    Command,
    Event,
    Failed,
    Generate,
    Token,
)
from hicache_storage.errors import HiCacheError

_Stream: TypeAlias = "asyncio.Queue[Token | ApiError]"
ENGINE_TIMEOUT = "engine_timeout"
"""Code of the error for a command that was not answered in time; the engine may carry it out later."""

_UNEXPECTED_END = "its events ended unexpectedly"
_PARTED = "rank consensus, entry "
"""In the failure of an engine whose ranks were compared and not found alike."""


class EngineLink:
    """A running engine, for coroutines. Made inside the event loop that uses it; `close` ends the engine.

    Attributes:
        stopped: set when the engine has ended, for whatever reason.
        idle: set while no request runs.
        failure: why it ended; None while it runs and where it was told to end. It may quote requests: for logs alone.
    """

    def __init__(self, client: EngineClient) -> None:
        self.stopped = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.failure: str | None = None
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, _Stream] = {}
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._command_ids = count(1)
        # One thread sends, so that commands stay in order and a full pipe does not stop the loop.
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="engine-commands")
        self._reader = threading.Thread(target=self._read, name="engine-events", daemon=True)
        self._reader.start()

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @contextmanager
    def generate(self, request: Generate) -> Iterator[AsyncIterator[Token]]:
        """Give the request's tokens as they come. Whoever leaves before the last one aborts the request.

        Raises:
            ApiError: there or while iterating: the engine cannot serve the request, or has ended.
        """
        self._check_runs()
        stream: _Stream = asyncio.Queue()
        self._streams[request.request_id] = stream
        self.idle.clear()
        self._send(request)
        try:
            yield _tokens(stream)
        finally:
            if self._forget(request.request_id):
                self._send(Abort(request.request_id))

    async def ask(self, make: Callable[[int], Command], *, timeout_s: float) -> Answered:
        """Return the engine's answer to the command that *make* makes of its id.

        Raises:
            ApiError: there was none in time, or the engine has ended.
        """
        self._check_runs()
        command_id = next(self._command_ids)
        answer: asyncio.Future[Answered] = self._loop.create_future()
        self._answers[command_id] = answer
        self._send(make(command_id))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise unavailable(f"the engine did not answer within {timeout_s:g} s", code=ENGINE_TIMEOUT) from None
        finally:
            del self._answers[command_id]

    def tell(self, make: Callable[[int], Command]) -> None:
        """Have the engine carry out the command that *make* makes of its id, behind all others; nobody waits for it."""
        self._send(make(next(self._command_ids)))

    def end_requests(self, error: ApiError) -> None:
        """End every request that runs with *error*, and abort it in the engine."""
        for request_id in list(self._streams):
            self._streams[request_id].put_nowait(error)
            self._forget(request_id)
            self._send(Abort(request_id))

    def gone(self) -> ApiError:
        """Return the error for whoever asks an engine that has ended."""
        if self.failure is None:
            message = "the engine has ended: it was shut down"
        elif _PARTED in self.failure:
            message = "the engine has ended: its ranks have parted; the server's log says where"
        else:
            message = "the engine has ended; the server's log says why"
        return unavailable(message, code="engine_ended")

    async def close(self, *, timeout_s: float) -> None:
        """End the engine: it has *timeout_s* to take the commands that are on their way, and as long to end by itself."""
        last = self._sender.submit(_nothing)
        # An engine that hangs may never take them.
        await asyncio.to_thread(wait, [last], timeout_s)
        await asyncio.to_thread(self._client.close, timeout_s)
        await asyncio.to_thread(self._reader.join, timeout_s)
        self._sender.shutdown(wait=False)

    def _check_runs(self) -> None:
        if self.stopped.is_set():
            raise self.gone()

    def _send(self, command: Command) -> None:
        if not self.stopped.is_set():
            self._sender.submit(self._client.send, command).add_done_callback(self._sent)

    def _sent(self, done: Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._post(partial(self._stop, str(error)))

    def _forget(self, request_id: str) -> bool:
        """Return whether the request was still running."""
        was_running = self._streams.pop(request_id, None) is not None
        if not self._streams:
            self.idle.set()
        return was_running

    def _read(self) -> None:
        """Pass events to the loop until there are no more; runs in a thread of its own."""
        failure: str | None = _UNEXPECTED_END
        try:
            while (event := self._client.receive()) is not None:
                self._post(partial(self._deliver, event))
            failure = None
        except HiCacheError as error:
            failure = str(error)
        finally:
            self._post(partial(self._stop, failure))

    def _post(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call)

    def _deliver(self, event: Event) -> None:
        if isinstance(event, Answered):
            answer = self._answers.get(event.command_id)
            if answer is not None and not answer.done():
                answer.set_result(event)
            return
        stream = self._streams.get(event.request_id)
        if stream is None:  # it was aborted
            return
        if isinstance(event, Failed):
            stream.put_nowait(_refusal(event))
        elif event.finish_reason == "abort":
            stream.put_nowait(unavailable("the engine aborted the request", code="aborted"))
        else:
            stream.put_nowait(event)
        if isinstance(event, Failed) or event.finish_reason is not None:
            self._forget(event.request_id)

    def _stop(self, failure: str | None) -> None:
        if self.stopped.is_set():
            return
        self.failure = failure
        self.stopped.set()
        for request_id in list(self._streams):
            self._streams[request_id].put_nowait(self.gone())
            self._forget(request_id)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self.gone())


def _nothing() -> None:
    """Be done once everything before it is."""


async def _tokens(stream: _Stream) -> AsyncIterator[Token]:
    while True:
        event = await stream.get()
        if isinstance(event, ApiError):
            raise event
        yield event
        if event.finish_reason is not None:
            return


def _refusal(event: Failed) -> ApiError:
    if event.is_too_large:
        return ApiError(event.reason, param="max_tokens", code="context_length_exceeded")
    return unavailable(event.reason, code="engine_failed")
