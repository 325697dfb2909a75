"""Field selectors: ``request.id``, ``pages[0]``, ``names['kv']``, ``len(match.pages)``. Parsed here, never evaluated as code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hicache_storage.engine_integration.consensus.canonical import canonical, in_ascii
from hicache_storage.errors import ConfigError

Step: TypeAlias = "Attribute | Item"

_NAME = r"(?!__)[A-Za-z_]\w*"
_LEN = re.compile(r"len\((.*)\)", re.DOTALL)
_ROOT = re.compile(_NAME)
_STEP = re.compile(rf"\.({_NAME})|\[(-?\d{{1,9}})\]|\['([^'\\\0]*)'\]|\[\"([^\"\\\0]*)\"\]")


@dataclass(frozen=True, slots=True)
class Attribute:
    """``.name``."""

    name: str

    def of(self, value: object) -> object:
        found: object = getattr(value, self.name)
        return found


@dataclass(frozen=True, slots=True)
class Item:
    """``[3]`` or ``['name']``."""

    key: int | str

    def of(self, value: object) -> object:
        found: object = value[self.key]  # type: ignore[index]  # TypeError where it has no items, told by `Selector.text`
        return found


@dataclass(frozen=True, slots=True)
class Selector:
    """A way from a parameter or the result to the value that is compared.

    Attributes:
        source: as it was written.
        root: name of the parameter, or ``result``.
    """

    source: str
    root: str
    steps: tuple[Step, ...]
    is_length: bool

    @classmethod
    def parse(cls, source: str) -> Selector:
        """Return the selector that *source* spells.

        Raises:
            ConfigError: it is none.
        """
        length = _LEN.fullmatch(source)
        path = length[1] if length else source
        root = _ROOT.match(path)
        if root is None:
            raise ConfigError(_refusal(source))
        steps: list[Step] = []
        at = root.end()
        while at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                raise ConfigError(_refusal(source))
            steps.append(_step(step))
            at = step.end()
        return cls(source, root[0], tuple(steps), length is not None)

    def text(self, values: Mapping[str, object]) -> str:
        """Return the canonical text of what is selected, or why there is nothing: that is compared too.

        A selector that does not fit must not end the scheduler that it looks at.
        """
        try:
            value = values[self.root]
            for step in self.steps:
                value = step.of(value)
            if self.is_length:
                value = len(value)  # type: ignore[arg-type]  # TypeError where it has no length
        except Exception as error:  # noqa: BLE001 - properties may raise anything
            return in_ascii(f"{self.source}=<{type(error).__name__}>")
        return f"{in_ascii(self.source)}={canonical(value)}"


def _step(match: re.Match[str]) -> Step:
    name, index, *quoted = match.groups()
    if name is not None:
        return Attribute(name)
    if index is not None:
        return Item(int(index))
    return Item(next(text for text in quoted if text is not None))


def _refusal(source: str) -> str:
    return (
        f"{source!r} is no field selector: expected a parameter's name, then .name, [number] or ['text'] as often as "
        "needed, and len(...) around it or not; names with two leading underscores are refused"
    )
