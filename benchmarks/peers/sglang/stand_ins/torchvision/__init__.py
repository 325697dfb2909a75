"""Stands in for torchvision, whose published wheel needs CUDA libraries.

SGLang imports names from it at module level; nothing that is measured here calls any of them. Every
name is an empty class, every listed submodule a module of such names.
"""

import sys
import types
from importlib.machinery import ModuleSpec

__version__ = "0.28.0"


class _AnyName(type):
    def __getattr__(cls, name: str) -> type:
        return _empty_class(name)


class _AnyModule(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        return _empty_class(name)


def _empty_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _AnyName(name, (), {})


def _add_submodule(name: str) -> None:
    full = f"{__name__}.{name}"
    module = _AnyModule(full)
    module.__path__ = []
    module.__spec__ = ModuleSpec(full, None, is_package=True)
    sys.modules[full] = module
    if "." not in name:
        globals()[name] = module


for _name in ("io", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional"):
    _add_submodule(_name)
for _name in ("ops", "models", "utils"):
    _add_submodule(_name)
