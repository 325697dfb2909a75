"""What is decorated: as it was while the checker is off, recorded on the scheduler's thread while it is on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from hicache_storage.engine_integration.consensus.decorator import rank_consensus
from hicache_storage.engine_integration.consensus.entry import Entry
from hicache_storage.engine_integration.consensus.recorder import Recorder, recording
from hicache_storage.errors import ConfigError, InvariantError


def add(left: int, right: int = 1, *more: int, scale: int = 1) -> int:
    return (left + right + sum(more)) * scale


def name_of(cls: type) -> str:
    return cls.__name__


def recorded(call: Callable[[], object]) -> list[str]:
    """Return the entries that *call* leaves."""
    entries: list[Entry] = []
    with recording(Recorder([entries.append])):
        call()
    return [str(entry) for entry in entries]


@pytest.mark.parametrize("decorated", [add, classmethod(name_of), staticmethod(add)])
@pytest.mark.parametrize("value", [None, "0", "false"])
def test_while_it_is_off_a_function_stays_the_very_same_object(
    decorated: object, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("HICACHE_RANK_CONSENSUS_CHECKER", value)

    assert rank_consensus(decorated) is decorated
    assert rank_consensus(same_params=True, same_results="result")(decorated) is decorated


@pytest.mark.parametrize("variable", ["HICACHE_RANK_CONSENSUS_CHECKER", "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER"])
@pytest.mark.parametrize("value", ["1", "true"])
def test_either_variable_switches_it_on(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)

    assert rank_consensus(add) is not add


def test_our_own_variable_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_RANK_CONSENSUS_CHECKER", "0")
    monkeypatch.setenv("SGLANG_ENABLE_RANK_CONSENSUS_CHECKER", "1")

    assert rank_consensus(add) is add


def test_a_value_that_is_neither_yes_nor_no_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_RANK_CONSENSUS_CHECKER", "perhaps")

    with pytest.raises(ConfigError, match="SGLANG_ENABLE_RANK_CONSENSUS_CHECKER"):
        rank_consensus(add)


@pytest.mark.usefixtures("checker_on")
def test_bare_it_records_the_order_of_calls() -> None:
    assert recorded(lambda: rank_consensus(add)(3)) == ["add()", "add returns"]


@pytest.mark.usefixtures("checker_on")
def test_all_parameters_are_recorded_with_their_defaults() -> None:
    checked = rank_consensus(same_params=True, same_results=True)(add)

    assert recorded(lambda: checked(3, 4, 5, scale=2)) == [
        "add(left=3, right=4, more=(5), scale=2)",
        "add returns result=24",
    ]
    assert recorded(lambda: checked(right=0, left=1)) == [
        "add(left=1, right=0, more=(), scale=1)",
        "add returns result=1",
    ]


@pytest.mark.usefixtures("checker_on")
def test_selectors_choose_what_is_recorded() -> None:
    checked = rank_consensus(same_params=["left", "len(more)"], same_results="left")(add)

    assert recorded(lambda: checked(3, 4, 5)) == ["add(left=3, len(more)=1)", "add returns left=3"]


@pytest.mark.usefixtures("checker_on")
def test_results_show_what_became_of_the_parameters() -> None:
    @rank_consensus(same_params="len(pages)", same_results="len(pages)")
    def grow(pages: list[int]) -> None:
        pages.append(1)

    assert [text.partition("grow")[2] for text in recorded(lambda: grow([]))] == [
        "(len(pages)=0)",
        " returns len(pages)=1",
    ]


@pytest.mark.usefixtures("checker_on")
def test_methods_of_every_kind_are_recorded_without_their_receiver() -> None:
    class Tree:
        size = 2

        @rank_consensus(same_params=True)
        def plain(self, a: int) -> int:
            return a

        @classmethod
        @rank_consensus(same_params=True)
        def inner_class(cls, a: int) -> int:
            return a

        @rank_consensus(same_params=True)
        @classmethod
        def outer_class(cls, a: int) -> int:
            return a

        @staticmethod
        @rank_consensus(same_params=True)
        def inner_static(a: int) -> int:
            return a

        @rank_consensus(same_params=True)
        @staticmethod
        def outer_static(a: int) -> int:
            return a

        @rank_consensus(same_params="self.size")
        def with_receiver(self) -> None:
            pass

    def calls() -> None:
        tree = Tree()
        tree.plain(1)
        for call in (tree.inner_class, Tree.outer_class, tree.inner_static, Tree.outer_static):
            assert call(7) == 7
        tree.with_receiver()

    texts = [text.partition("Tree.")[2] for text in recorded(calls)]
    assert texts[::2] == [
        "plain(a=1)",
        "inner_class(a=7)",
        "outer_class(a=7)",
        "inner_static(a=7)",
        "outer_static(a=7)",
        "with_receiver(self.size=2)",
    ]


@pytest.mark.usefixtures("checker_on")
def test_an_exception_is_recorded_by_its_name_and_passes() -> None:
    @rank_consensus
    def divide(a: int) -> float:
        return 1 / a

    def call() -> None:
        with pytest.raises(ZeroDivisionError):
            divide(0)

    assert recorded(call)[1].endswith("divide raises ZeroDivisionError")


@pytest.mark.usefixtures("checker_on")
def test_nested_calls_are_recorded_in_the_order_in_which_they_happen() -> None:
    inner = rank_consensus(add)

    @rank_consensus
    def outer() -> int:
        return inner(1)

    names = [text.rpartition(">.")[2] for text in recorded(outer)]
    assert names == ["outer()", "add()", "add returns", "outer returns"]


@pytest.mark.usefixtures("checker_on")
def test_calls_of_other_threads_are_not_recorded() -> None:
    checked = rank_consensus(add)

    def calls() -> None:
        thread = threading.Thread(target=checked, args=(1,))
        thread.start()
        thread.join()
        asyncio.run(asyncio.to_thread(checked, 1))

    assert recorded(calls) == []


@pytest.mark.usefixtures("checker_on")
def test_wrong_arguments_are_the_callers_own_error() -> None:
    checked: Callable[..., int] = rank_consensus(same_params=True)(add)

    with recording(Recorder()), pytest.raises(TypeError, match="left"):
        checked()


@pytest.mark.usefixtures("checker_on")
def test_parameters_without_variable_ones_are_recorded_alike() -> None:
    @rank_consensus(same_params=True)
    def fixed(a: int, /, b: int = 2, *, c: int = 3) -> int:
        return a + b + c

    wrong: Callable[..., int] = fixed

    def calls() -> None:
        fixed(1)
        fixed(1, 5, c=6)
        fixed(1, b=7)
        with pytest.raises(TypeError):
            wrong()

    texts = [text.rpartition(">.")[2] for text in recorded(calls)]
    assert texts[::2] == [
        "fixed(a=1, b=2, c=3)",
        "fixed(a=1, b=5, c=6)",
        "fixed(a=1, b=7, c=3)",
        "fixed(a=<KeyError>, b=2, c=3)",
    ]
    assert texts[-1] == "fixed raises TypeError"


@pytest.mark.usefixtures("checker_on")
def test_a_decorated_function_keeps_its_name_and_signature() -> None:
    checked = rank_consensus(add)

    assert (checked.__name__, checked.__qualname__, checked.__module__) == ("add", "add", __name__)


def test_one_thread_is_the_scheduler_of_one_rank() -> None:
    with recording(Recorder()), pytest.raises(InvariantError), recording(Recorder()):
        pass


@pytest.mark.parametrize(
    ("params", "results"),
    [
        ("absent", False),
        ("absent.id", False),
        ("result", False),
        (False, "absent"),
        ("left +", False),
        (["left", ""], False),
    ],
)
def test_a_selector_that_cannot_fit_is_refused_also_while_it_is_off(
    params: bool | str | list[str], results: bool | str
) -> None:
    with pytest.raises(ConfigError, match="rank_consensus of add"):
        rank_consensus(same_params=params, same_results=results)(add)


def test_generators_and_coroutines_are_refused() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def number() -> int:
        return 1

    async def numbers_later() -> AsyncIterator[int]:
        yield 1

    for function in (numbers, number, numbers_later):
        with pytest.raises(ConfigError, match="order of calls"):
            rank_consensus(function)
