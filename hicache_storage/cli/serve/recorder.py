"""A trace of the requests that were served, one JSON line each, as `hicache replay` reads it. Format: docs/replay.md."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiofiles
import msgspec
from aiofiles.threadpool.binary import AsyncBufferedIOBase
from prometheus_client import Counter

from hicache_storage.engine_integration.reference_engine.messages import Generate
from hicache_storage.engine_integration.replay.line import TraceLine
from hicache_storage.errors import ConfigError

_log = logging.getLogger(__name__)

_MS_PER_S = 1000


@dataclass(slots=True)
class Record:
    """A request on its way into the trace."""

    request: Generate
    timestamp_ms: int
    output: list[int] | None = None

    def line(self) -> bytes:
        request, output = self.request, self.output or []
        is_sampled = request.temperature > 0
        line = TraceLine(
            timestamp=self.timestamp_ms,
            input_length=len(request.tokens),
            output_length=len(output),
            token_ids=list(request.tokens),
            output_ids=output,
            temperature=request.temperature if is_sampled else None,
            top_p=request.top_p if is_sampled and request.top_p < 1 else None,
            seed=request.seed if is_sampled else None,
            stop_token_ids=list(request.stop_tokens) or None,
            ignore_eos=request.ignore_eos,
            lora_id=request.lora_id,
            cache_salt=request.cache_salt,
        )
        return msgspec.json.encode(line) + b"\n"


class Recorder:
    """Writes requests in the order of their arrival, each once it has ended and so have all before it.

    A disk that fails or fills costs the trace, not the requests: the recorder then says so once, and counts.
    """

    def __init__(self, file: AsyncBufferedIOBase, unrecorded: Counter) -> None:
        self._file = file
        self._unrecorded = unrecorded
        self._started_s = time.monotonic()
        self._open: deque[Record] = deque()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._failed = False
        self._writer = asyncio.create_task(self._write())

    @classmethod
    async def open(cls, path: Path, unrecorded: Counter) -> Recorder:
        """Return a recorder that writes to *path*, which only its owner may read: prompts and answers are private.

        Raises:
            ConfigError: it cannot be written, or holds a trace already.
        """
        check_new(path)
        return cls(await aiofiles.open(path, "ab", opener=_only_for_owner), unrecorded)

    def begin(self, request: Generate) -> Record:
        """Return the record of a request that has just come in; `finish` it in any case."""
        elapsed_s = time.monotonic() - self._started_s
        record = Record(request, int(elapsed_s * _MS_PER_S))
        self._open.append(record)
        return record

    def finish(self, record: Record, output: list[int]) -> None:
        """Note the end of a request, with the tokens of its answer as far as it came."""
        record.output = output
        while self._open and self._open[0].output is not None:
            self._lines.put_nowait(self._open.popleft().line())

    async def close(self) -> None:
        """Write what has ended and close the file; requests that still run are left out."""
        self._lines.put_nowait(None)
        await self._writer
        with suppress(OSError):  # what it says of unwritten lines has been said and counted
            await self._file.close()

    async def _write(self) -> None:
        while (line := await self._lines.get()) is not None:
            if self._failed:
                self._unrecorded.inc()
                continue
            try:
                await self._file.write(line)
                await self._file.flush()
            except OSError as error:
                self._failed = True
                self._unrecorded.inc()
                _log.error("recorder.failed reason=%s", error.strerror)


def check_new(path: Path) -> None:
    """Make the file for a trace.

    Raises:
        ConfigError: it cannot be written, or holds something already, to which the new times would not fit.
    """
    try:
        descriptor = _only_for_owner(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        has_content = os.fstat(descriptor).st_size > 0
        os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"--record-requests {path} cannot be written: {error.strerror}") from error
    if has_content:
        raise ConfigError(f"--record-requests {path} has content already; name a new file")


def _only_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
