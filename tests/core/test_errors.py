"""The exceptions: their tree, and what each carries."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from hicache_storage import errors
from hicache_storage.errors import HiCacheError, RankFailure, StoreError, StoreUnavailable

STORE_ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StoreError)]


def drawn_tree() -> set[tuple[str, str]]:
    """Return (class, base) for every line of the tree in the module's docstring."""
    edges: set[tuple[str, str]] = set()
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        names = (
            [word for word in line.split() if word.isidentifier()] if "──" in line or line.startswith("    Hi") else []
        )
        if not names:
            continue
        start = line.index(names[0])
        depth = (start - len("    ")) // len("├── ")
        edges |= {(names[0], above[depth - 1])} if depth else {(names[0], "Exception")}
        above[depth:] = [names[0]]
    return edges


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    real = {
        (kind.__name__, kind.__bases__[0].__name__)
        for kind in vars(errors).values()
        if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }

    assert drawn_tree() == real


def test_the_module_imports_nothing() -> None:
    assert "import" not in inspect.getsource(errors).replace("imports nothing", "")


@pytest.mark.parametrize("kind", STORE_ERRORS)
def test_a_store_error_carries_backend_operation_and_key(kind: type[StoreError]) -> None:
    error = kind("no answer", backend="s3", op="read", key="abc")

    assert (error.backend, error.op, error.key) == ("s3", "read", "abc")
    assert str(error) == "no answer (backend=s3 op=read key=abc)"


@pytest.mark.parametrize("kind", STORE_ERRORS)
def test_a_store_error_without_a_place_is_its_reason(kind: type[StoreError]) -> None:
    assert str(kind("no answer")) == "no answer"


def test_only_an_unavailable_store_is_worth_another_try() -> None:
    assert [kind for kind in STORE_ERRORS if kind.retryable] == [StoreUnavailable]


def test_one_except_catches_everything_that_is_raised_on_purpose() -> None:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__]

    assert all(issubclass(kind, HiCacheError) for kind in kinds)


def test_a_rank_failure_names_step_and_every_rank_in_order() -> None:
    reasons = {3: "disk full", 1: "timed out"}

    error = RankFailure("storage_hit", reasons)
    reasons.clear()

    assert str(error) == "step 'storage_hit' failed on 2 rank(s): rank 1: timed out; rank 3: disk full"
    assert error.step == "storage_hit"
    assert error.reasons == {1: "timed out", 3: "disk full"}


def test_the_package_exports_every_error() -> None:
    script = (
        "import hicache_storage as h, hicache_storage.errors as e; "
        "print([n for n, k in vars(e).items() if isinstance(k, type) and getattr(h, n, None) is not k])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
