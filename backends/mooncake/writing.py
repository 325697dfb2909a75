"""Writing: reserve names, transfer bodies, and make only those visible that came in time and whole."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hicache_storage.backends.mooncake.engine import Engine
from hicache_storage.backends.mooncake.errors import (
    ALREADY_EXISTS,
    NOT_THERE,
    OK,
    PASSING,
    TRANSFER_FAIL,
    store_error,
)
from hicache_storage.backends.mooncake.names import Names
from hicache_storage.backends.mooncake.options import MooncakeOptions
from hicache_storage.backends.mooncake.pieces import TAIL, Body, Piece, cut
from hicache_storage.backends.mooncake.sdk import LONGEST_WAIT_S, Client, ReplicateConfig, placements
from hicache_storage.backends.mooncake.workers import Call
from hicache_storage.types import ALREADY_THERE, STORED, ObjectWrite, Outcome, failed

_LONGEST_PAUSE_S = 0.05


@dataclass(slots=True)
class Writing:
    """The requests of one call that are still open, by index."""

    requests: dict[int, ObjectWrite]
    names: dict[int, str]
    outcomes: list[Outcome | None]
    nbytes: dict[int, int] = field(default_factory=dict)

    def open(self) -> list[int]:
        return [index for index in self.requests if self.outcomes[index] is None]

    def settle(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome

    def fail(self, index: int, code: int) -> None:
        self.settle(index, failed(store_error(code, op="write", key=self.requests[index].key)))

    def named(self, indexes: Iterable[int]) -> list[str]:
        return [self.names[index] for index in indexes]


class Writer:
    """Performs writes on the thread that calls it."""

    def __init__(self, engine: Engine, names: Names, options: MooncakeOptions) -> None:
        self._engine = engine
        self._names = names
        self._replica_num = options.replica_num
        self._groups = options.group_objects and hasattr(engine.sdk.ReplicateConfig(), "group_ids")

    def write(self, call: Call, requests: dict[int, ObjectWrite], names: dict[int, str]) -> None:
        """The outcomes of *requests* are set in *call*, unless it is abandoned before.

        A name that somebody is writing at this moment is waited for.

        Raises:
            StoreUnavailable: the master does not answer.
        """
        writing = Writing(requests, names, call.outcomes)
        writing.nbytes = {index: write.nbytes + len(TAIL) for index, write in requests.items()}
        pause_s = 0.0005
        client = self._engine.client("write", call.ends_at)
        while call.wanted and writing.open():
            reserved = self._reserve(client, writing)
            self._transfer_all(client, call, writing, reserved)
            if not reserved and writing.open():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _reserve(self, client: Client, writing: Writing) -> list[int]:
        """Return the requests whose names are now ours to fill; settle those that others have filled."""
        indexes = writing.open()
        names = writing.named(indexes)
        config = self._config(names)
        codes = client.batch_put_session_start(names, [writing.nbytes[index] for index in indexes], config)
        reserved: list[int] = []
        taken: list[int] = []
        for index, code in zip(indexes, codes, strict=True):
            if code == OK:
                reserved.append(index)
            elif code == ALREADY_EXISTS:
                taken.append(index)
            elif code not in PASSING:
                writing.fail(index, code)
        if taken:
            self._look_at(client, writing, taken)
        return reserved

    def _look_at(self, client: Client, writing: Writing, taken: Sequence[int]) -> None:
        """Settle those that are there; remove objects of another size; leave open what is still being written."""
        there = placements(client, writing.named(taken))
        damaged: list[int] = []
        for index in taken:
            copies = there.get(writing.names[index])
            if copies is None:
                continue
            if any(copy.nbytes == writing.nbytes[index] for copy in copies):
                writing.settle(index, ALREADY_THERE)
            else:
                damaged.append(index)
        if damaged:
            for index, code in zip(damaged, client.batch_remove(writing.named(damaged), True), strict=True):  # noqa: FBT003 - the SDK's
                if code not in NOT_THERE | PASSING | {OK}:
                    writing.fail(index, code)

    def _transfer_all(self, client: Client, call: Call, writing: Writing, reserved: Sequence[int]) -> None:
        """What was reserved is visible and whole, or was never seen by anybody."""
        if not reserved:
            return
        codes: dict[int, int] = {}
        began_s = time.monotonic()
        try:
            codes = self._transfer(client, call, writing, reserved)
        finally:
            # Who has left may have changed the memory that was read: not even what came whole may be seen.
            whole = [index for index in reserved if codes.get(index) == OK] if call.wanted else []
            lost = [index for index in reserved if index not in whole]
            # A name that is given up frees memory of a node at once. If a transfer may still go on, that is
            # left to the master, which waits ten minutes with it.
            if lost and time.monotonic() - began_s < LONGEST_WAIT_S:
                client.batch_put_session_revoke(writing.named(lost))
        for index in lost:
            if codes.get(index, OK) != OK:
                writing.fail(index, codes[index])
        if whole:
            for index, code in zip(whole, client.batch_put_session_end(writing.named(whole)), strict=True):
                if code == OK:
                    writing.settle(index, STORED)
                else:
                    writing.fail(index, code)

    def _transfer(self, client: Client, call: Call, writing: Writing, reserved: Sequence[int]) -> dict[int, int]:
        """Move the bodies; return `OK` or the first error code for each request, nothing if the call is abandoned."""
        codes = dict.fromkeys(reserved, OK)
        bodies = [Body(index, 0, [*writing.requests[index].parts, TAIL]) for index in reserved]
        with self._engine.slot("write", call.ends_at) as slot:
            for piece in cut(bodies, slot.nbytes, slot.address, self._engine.direct_address):
                if not call.wanted:
                    return {}
                for part in piece.parts:
                    if part.at is not None:
                        slot.fill(part.at, part.buffer)
                self._put(client, writing, piece, codes)
        return codes

    def _put(self, client: Client, writing: Writing, piece: Piece, codes: dict[int, int]) -> None:
        spans = {index: of_one for index, of_one in piece.by_request().items() if codes[index] == OK}
        results = client.batch_put_from_multi_buffer_ranges(
            writing.named(spans),
            [[span.address for span in of_one] for of_one in spans.values()],
            [[span.nbytes for span in of_one] for of_one in spans.values()],
            [[span.offset for span in of_one] for of_one in spans.values()],
        )
        for (index, of_one), moved in zip(spans.items(), results, strict=True):
            if moved != sum(span.nbytes for span in of_one):
                codes[index] = moved if moved < 0 else TRANSFER_FAIL

    def _config(self, names: list[str]) -> ReplicateConfig:
        config = self._engine.sdk.ReplicateConfig()
        config.replica_num = self._replica_num
        if self._groups:
            config.group_ids = [self._names.group(name) for name in names]
        return config
