"""What the launcher and the ranks say about themselves, beside the events of requests. Free of torch."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from hicache_storage import errors
from hicache_storage.engine_integration.reference_engine.messages import Answered, Failed, Token
from hicache_storage.errors import ConfigError, HiCacheError, LayoutError, RankFailure, StoreError


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Every rank is set up."""


class Broken(msgspec.Struct, frozen=True, tag=True):
    """A rank has raised.

    Attributes:
        kind: class of the error, in `hicache_storage.errors` or elsewhere.
        reason: its message.
    """

    kind: str
    reason: str

    @classmethod
    def of(cls, error: BaseException) -> Broken:
        """Return what *error* says; for an agreed failure what this rank itself has to say about it."""
        cause = error.__cause__ if isinstance(error, RankFailure) else None
        if isinstance(cause, ConfigError | LayoutError | StoreError):
            error = cause
        return cls(type(error).__name__, str(error))

    @property
    def is_cause(self) -> bool:
        """Not just the loss of another rank."""
        return self.kind != RankFailure.__name__


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The launcher's last message, after every rank has ended.

    Attributes:
        reasons: why ranks ended, by rank; none if all ended in order.
        broken: the error of one of them that is a cause, None if no rank could tell.
    """

    reasons: dict[int, str]
    broken: Broken | None = None

    def error(self, step: str) -> HiCacheError | None:
        """Return the error that ended the engine, of its own class if it is one of ours; None if it ended in order.

        Args:
            step: what the engine was doing.
        """
        if not self.reasons:
            return None
        kind: object = vars(errors).get(self.broken.kind) if self.broken is not None else None
        listing = "; ".join(f"{name}" for name in self.reasons.values())
        if isinstance(kind, type) and issubclass(kind, HiCacheError) and kind is not RankFailure:
            return kind(listing)
        return RankFailure(step, self.reasons)


Voice: TypeAlias = Ready | Token | Failed | Answered
"""What the first rank says."""

encode = msgspec.msgpack.Encoder().encode
decode_voice = msgspec.msgpack.Decoder(Voice).decode
decode_broken = msgspec.msgpack.Decoder(Broken).decode
decode_ended = msgspec.msgpack.Decoder(Ended).decode
