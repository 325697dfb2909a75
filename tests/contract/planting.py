"""Runs stores with planted faults against the laws that must catch them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from inspect import getattr_static

import pytest

from hicache_storage.store import ObjectStore
from hicache_storage.testing.contract import StoreContract, StoreHooks


def planted_classes(hooks: type[StoreHooks], planted: Sequence[tuple[type[ObjectStore], str]]) -> dict[str, type]:
    """Return a test class for every faulty store, with its laws only: collecting all of them takes long."""
    classes: dict[str, type] = {}
    for store_type, law in planted:
        name = f"Test{store_type.__name__}"
        classes.setdefault(name, type(name, (hooks,), {"store_type": store_type}))
        setattr(classes[name], law, getattr_static(StoreContract, law))
    return classes


def assert_all_caught(pytester: pytest.Pytester, module: str) -> None:
    """Assert that each law in ``PLANTED_CLASSES`` of the loaded *module* fails, and for no other reason than a fault."""
    path = pytester.makepyfile(f"import sys\nglobals().update(sys.modules[{module!r}].PLANTED_CLASSES)")
    classes: dict[str, type] = sys.modules[module].PLANTED_CLASSES
    wanted = {f"{path.name}::{name}::{law}" for name, found in classes.items() for law in vars(found) if "test_" in law}

    _, _, failures = pytester.inline_run("-p", "no:cacheprovider").listoutcomes()

    assert {report.nodeid.partition("[")[0] for report in failures if report.when == "call"} == wanted
