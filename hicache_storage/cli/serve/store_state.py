"""Which store the engine uses, in words that hold no secret."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hicache_storage.config import load_extra_config
from hicache_storage.registry import ResolvedStore, resolve_store

_USERINFO = re.compile(r"://\S*@")
_CUT_OFF = re.compile(r"://[^/\s]*(?=$|; )")
"""The end of a text, or of a rank's part of it, that may have been cut off within a URL, in front of its ``@``."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """A store by its backend and the options that are not defaults, secrets masked."""

    backend: str
    options: dict[str, str]

    @classmethod
    def of(cls, resolved: ResolvedStore) -> StoreState:
        shown = {
            setting.name: _USERINFO.sub("://***@", str(setting.value))
            for setting in resolved.settings
            if setting.source != "default" or setting.name == "path"
        }
        return cls(resolved.backend, shown)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.backend} ({options})" if options else self.backend


def describe_store(backend: str, extra_config: str | None) -> StoreState:
    """Return what *backend* and *extra_config* mean. Nothing is opened.

    Raises:
        ConfigError: no such backend, or an option is wrong.
    """
    return StoreState.of(resolve_store(backend, load_extra_config(extra_config) if extra_config else {}))


def without_userinfo(text: str) -> str:
    """Return *text*, which somebody else wrote and may have cut off, without the users and passwords of URLs in it."""
    return _CUT_OFF.sub("://***", _USERINFO.sub("://***@", text))
