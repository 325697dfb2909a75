"""How bytes of an object come into the caller's memory."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from http.client import HTTPResponse

from hicache_storage.backends.s3.bucket import Bucket, Call, encode_crc32
from hicache_storage.backends.s3.errors import BACKEND
from hicache_storage.backends.s3.ranges import Extent, Want, deal_out, verdict
from hicache_storage.errors import CorruptObject, RangeError, StoreUnavailable
from hicache_storage.types import HIT, MISS, Outcome, failed


class Reader:
    """Reads objects of one bucket. Thread-safe."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read_run(self, call: Call, name: str, run: Sequence[Want], outcomes: list[Outcome | None]) -> None:
        """Perform requests that one HTTP request answers, and set their outcomes.

        Raises:
            StoreError, OSError, http.client.HTTPException: the outcomes still unset are undecided.
        """
        if not run[0].is_range:
            self._judge(call, name, run, outcomes)
            return
        start, stop, whole = run[0].read.offset, run[-1].stop, self._is_checked(run)
        try:
            with self._bucket.get(call, name, start, stop, whole=whole) as response:
                if response is None:
                    _set_all(run, outcomes, MISS)
                    return
                deal_out(response, Extent.of(response, run), run, outcomes)
                if whole:
                    _check_crc32(response, run[0], outcomes)
        except RangeError:
            # The object ends before the first range does; of each request, its size tells what is wrong.
            self._judge(call, name, run, outcomes)

    def _judge(self, call: Call, name: str, run: Sequence[Want], outcomes: list[Outcome | None]) -> None:
        """Set the outcomes of requests that move no byte, by the size of the object."""
        head = self._bucket.head(call, name)
        if head is None:
            _set_all(run, outcomes, MISS)
            return
        for want in run:
            error = verdict(want, head.nbytes)
            if error is None and want.is_range:
                reason = "the object changed while it was read"
                error = StoreUnavailable(reason, backend=BACKEND, op=call.op, key=call.key)
            outcomes[want.index] = HIT if error is None else failed(error)

    def _is_checked(self, run: Sequence[Want]) -> bool:
        """Return whether the server's checksum, which is one of whole objects, is asked for."""
        read = run[0].read
        return (
            self._bucket.checks_answers and read.offset == 0 and run[0].nbytes == read.object_nbytes and len(run) == 1
        )


def _set_all(run: Sequence[Want], outcomes: list[Outcome | None], outcome: Outcome) -> None:
    for want in run:
        outcomes[want.index] = outcome


def _check_crc32(response: HTTPResponse, want: Want, outcomes: list[Outcome | None]) -> None:
    """Fail the request if its bytes have another CRC-32 than the server says. Objects in parts have none."""
    said = response.headers.get("x-amz-checksum-crc32", "")
    if outcomes[want.index] is not HIT or not said or "-" in said:
        return
    crc = 0
    for target in want.read.targets:
        crc = zlib.crc32(target, crc)
    if encode_crc32(crc) != said:
        reason = f"CRC-32 is {encode_crc32(crc)} instead of {said}"
        outcomes[want.index] = failed(CorruptObject(reason, backend=BACKEND, op="read", key=want.read.key))
