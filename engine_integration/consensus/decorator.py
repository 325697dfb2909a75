"""`@rank_consensus`: marks what all ranks must do alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TypeAlias, TypeVar, cast, overload

from hicache_storage.engine_integration.consensus.canonical import clipped, in_ascii
from hicache_storage.engine_integration.consensus.entry import MAX_NAME_CHARS, MAX_VALUE_CHARS
from hicache_storage.engine_integration.consensus.options import ConsensusOptions
from hicache_storage.engine_integration.consensus.recorder import recorder_here
from hicache_storage.engine_integration.consensus.selectors import Selector
from hicache_storage.errors import ConfigError

F = TypeVar("F")
Selection: TypeAlias = bool | str | Sequence[str]
Plain: TypeAlias = Callable[..., object]

_RESULT = "result"
_RECEIVERS = ("self", "cls")
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NOT_IN_ORDER = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


@overload
def rank_consensus(function: F, /) -> F: ...
@overload
def rank_consensus(*, same_params: Selection = ..., same_results: Selection = ...) -> Callable[[F], F]: ...


def rank_consensus(
    function: F | None = None, /, *, same_params: Selection = False, same_results: Selection = False
) -> F | Callable[[F], F]:
    """Have every call of the function compared between ranks, in the order in which each scheduler makes them.

    Without arguments, the order of calls and whether they raise are compared. While the checker is off, what is
    decorated is returned as it is. Only calls on a thread that a `Checker` guards are recorded, each with an entry
    for the call and one for its end.

    Args:
        function: a function, a method, or what `classmethod` or `staticmethod` made of one.
        same_params: True, or a selector or several (see `selectors`) of parameters that must be equal too. True
            leaves out *self* and *cls*.
        same_results: the same for the result, which selectors call ``result``; they may name parameters too, to
            see what the call has made of them.

    Raises:
        ConfigError: a selector does not parse or names no parameter; the function is a generator or coroutine.
    """

    def decorate(decorated: F) -> F:
        wrapped = decorated.__func__ if isinstance(decorated, classmethod | staticmethod) else decorated
        plan = _Plan(cast("Plain", wrapped), same_params, same_results)
        if not ConsensusOptions.from_environment().checker:
            return decorated
        recording = plan.recording()
        if isinstance(decorated, classmethod | staticmethod):
            return cast("F", type(decorated)(recording))
        return cast("F", recording)

    return decorate if function is None else decorate(function)


class _Plan:
    """What is recorded of one function."""

    def __init__(self, function: Plain, same_params: Selection, same_results: Selection) -> None:
        self._function = function
        self._name = clipped(in_ascii(function.__qualname__), MAX_NAME_CHARS)
        if any(is_one(function) for is_one in _NOT_IN_ORDER):
            raise ConfigError(f"{self._name}: what a generator or a coroutine does has no place in the order of calls")
        self._signature = inspect.signature(function)
        names = list(self._signature.parameters)
        own = names[1:] if names[:1] and names[0] in _RECEIVERS else names
        self._params = self._selectors(same_params, own, names)
        self._results = self._selectors(same_results, [_RESULT], [*names, _RESULT])

    def recording(self) -> Plain:
        """Return the function that records its calls."""
        function, name, params, results = self._function, self._name, self._params, self._results
        values_of = self._values_of()

        @wraps(function)
        def recorded(*args: object, **kwargs: object) -> object:
            recorder = recorder_here()
            if recorder is None:
                return function(*args, **kwargs)
            values = values_of(args, kwargs) if params or results else {}
            recorder.called(name, _described(params, values))
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                recorder.record("raise", name, in_ascii(type(error).__name__))
                raise
            recorder.record("return", name, _described(results, {**values, _RESULT: result}) if results else "")
            return result

        return recorded

    def _values_of(self) -> Callable[[tuple[object, ...], dict[str, object]], dict[str, object]]:
        """Return what gives the parameters of a call by name, defaults included."""
        signature = self._signature
        names = tuple(signature.parameters)
        parameters = signature.parameters.values()
        defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}

        def bound(args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
            arguments = signature.bind(*args, **kwargs)
            arguments.apply_defaults()
            return arguments.arguments

        def zipped(args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
            # A tenth of what `bind` costs. Arguments that do not fit are refused by the function itself.
            return defaults | dict(zip(names, args, strict=False)) | kwargs

        return bound if any(one.kind in _VARIABLE for one in parameters) else zipped

    def _selectors(self, selection: Selection, everything: Sequence[str], roots: Sequence[str]) -> tuple[Selector, ...]:
        if isinstance(selection, bool):
            selection = everything if selection else ()
        sources = (selection,) if isinstance(selection, str) else selection
        try:
            selectors = tuple(Selector.parse(source) for source in sources)
        except ConfigError as error:
            raise ConfigError(f"rank_consensus of {self._name}: {error}") from None
        for selector in selectors:
            if selector.root not in roots:
                raise ConfigError(
                    f"rank_consensus of {self._name}: {selector.source!r} selects from {selector.root!r}; "
                    f"there is: {', '.join(roots) or 'nothing'}"
                )
        return selectors


def _described(selectors: Sequence[Selector], values: Mapping[str, object]) -> str:
    return clipped(", ".join([selector.text(values) for selector in selectors]), MAX_VALUE_CHARS)
