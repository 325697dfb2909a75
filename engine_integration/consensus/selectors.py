"""Field selectors: ``request.id``, ``pages[0]``, ``names['kv']``, ``len(match.pages)``, ``acks[*].id``. Never evaluated as code."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TypeAlias

from hicache_storage.engine_integration.consensus.canonical import canonical, in_ascii
from hicache_storage.errors import ConfigError

Step: TypeAlias = Callable[[object], object]

_NAME = r"(?!__)[A-Za-z_]\w*"
_LEN = re.compile(r"len\((.*)\)", re.DOTALL)
_ROOT = re.compile(_NAME)
_STEP = re.compile(rf"\.({_NAME})|\[(\*)\]|\[(-?\d{{1,9}})\]|\['([^'\\\0]*)'\]|\[\"([^\"\\\0]*)\"\]")


@dataclass(frozen=True, slots=True)
class Selector:
    """A way from a parameter or the result to the value that is compared.

    Attributes:
        source: as it was written, in ASCII.
        root: name of the parameter, or ``result``.
        way: from its value to what is selected; None for the value itself.
    """

    source: str
    root: str
    way: Step | None

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
        found: list[re.Match[str]] = []
        at = root.end()
        while at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                raise ConfigError(_refusal(source))
            found.append(step)
            at = step.end()
        steps = _steps(found)
        if length is not None:
            steps.append(_length)
        return cls(in_ascii(source), root[0], _one_after_another(steps) if steps else None)

    def text(self, values: Mapping[str, object]) -> str:
        """Return the canonical text of what is selected, or why there is nothing: that is compared too.

        A selector that does not fit must not end the scheduler that it looks at.
        """
        try:
            value = values[self.root]
            if self.way is not None:
                value = self.way(value)
            return f"{self.source}={canonical(value)}"
        except Exception as error:  # noqa: BLE001 - properties may raise anything, and so may a value that changes meanwhile
            return f"{self.source}=<{in_ascii(type(error).__name__)}>"


def _steps(found: Sequence[re.Match[str]]) -> list[Step]:
    """Return what leads along the path, with everything behind a ``[*]`` as one step."""
    steps: list[Step] = []
    for number, match in enumerate(found):
        name, star, index, *quoted = match.groups()
        if star is not None:
            return [*steps, _each(_steps(found[number + 1 :]))]
        if name is not None:
            steps.append(attrgetter(name))
        else:
            key = next(text for text in quoted if text is not None) if index is None else int(index)
            steps.append(itemgetter(key))  # type: ignore[arg-type]  # TypeError where there are no items
    return steps


def _one_after_another(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]

    def way(value: object) -> object:
        for step in steps:
            value = step(value)
        return value

    return way


def _each(steps: Sequence[Step]) -> Step:
    way = _one_after_another(steps) if steps else _itself

    def each(values: object) -> object:
        if not isinstance(values, Collection):  # an iterator must not be used up for the one who looks
            raise TypeError(type(values).__name__)
        return [way(value) for value in values]

    return each


def _itself(value: object) -> object:
    return value


def _length(value: object) -> object:
    return len(value)  # type: ignore[arg-type]  # TypeError where it has no length


def _refusal(source: str) -> str:
    return (
        f"{source!r} is no field selector: expected a parameter's name, then .name, [number], ['text'] or [*] as often "
        "as needed, and len(...) around it or not; names with two leading underscores are refused"
    )
