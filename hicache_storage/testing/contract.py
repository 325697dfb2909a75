"""The conformance suite: laws that every backend obeys and that nobody can silence.

    class TestMyStore(StoreContract):
        bounded = False

        @pytest.fixture
        def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
            self.root = tmp_path
            with MyStore(MyOptions(path=tmp_path)) as store:
                yield store

        def plant(self, store: ObjectStore, key: str, body: bytes) -> None: ...
        def observe(self, store: ObjectStore, key: str) -> bytes | None: ...

`StoreHooks` lists what a subclass gives. A store must take objects of 2 MiB and a few bytes. What a store cannot do it says in its `Capabilities` and in the
class; the laws then demand that it says so properly. Any other deviation is a waiver with a reason.
"""

from __future__ import annotations

import sys
from inspect import getattr_static
from typing import ClassVar

import pytest

# pytest does not collect the modules of the laws; this makes their failures show both values all the same.
_MODULES = ("hooks", "laws_read", "laws_write", "laws_keys", "laws_batch", "laws_concurrency", "laws_lifetime")
_NAMES = [f"{__package__}.{module}" for module in _MODULES]
pytest.register_assert_rewrite(*[name for name in _NAMES if name not in sys.modules])

from hicache_storage.testing.bodies import body_of  # noqa: E402 - after the line above
from hicache_storage.testing.hooks import SMALL_STORE_NBYTES, StoreHooks  # noqa: E402
from hicache_storage.testing.laws_batch import BatchLaws  # noqa: E402
from hicache_storage.testing.laws_concurrency import ConcurrencyLaws  # noqa: E402
from hicache_storage.testing.laws_keys import HOSTILE_KEYS, KeyLaws  # noqa: E402
from hicache_storage.testing.laws_lifetime import LifetimeLaws  # noqa: E402
from hicache_storage.testing.laws_read import ReadLaws  # noqa: E402
from hicache_storage.testing.laws_write import WriteLaws  # noqa: E402

__all__ = ["HOSTILE_KEYS", "SMALL_STORE_NBYTES", "StoreContract", "StoreHooks", "body_of"]


class StoreContract(ReadLaws, WriteLaws, KeyLaws, BatchLaws, ConcurrencyLaws, LifetimeLaws):
    """Laws every backend obeys. Subclass it, fill in the hooks, change nothing else."""

    waived: ClassVar[dict[str, str]] = {}
    """Law -> why this backend does not obey it. A waived law must fail: it is a strict xfail."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        laws = {name for name in dir(StoreContract) if name.startswith("test_")}
        fixed = laws | {"_honour_waivers"}
        replaced = sorted(
            name for name in fixed if getattr_static(cls, name) is not getattr_static(StoreContract, name)
        )
        if replaced:
            raise TypeError(f"{cls.__name__} replaces laws {replaced}; waive them instead")
        unknown = sorted(cls.waived.keys() - laws)
        if unknown:
            raise TypeError(f"{cls.__name__} waives laws that do not exist: {unknown}")
        unexplained = sorted(law for law, reason in cls.waived.items() if not reason.strip())
        if unexplained:
            raise TypeError(f"{cls.__name__} waives {unexplained} without a reason")

    @pytest.fixture(autouse=True)
    def _honour_waivers(self, request: pytest.FixtureRequest) -> None:
        reason = self.waived.get(request.node.originalname)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
