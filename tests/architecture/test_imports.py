"""No import points up, and the light parts stay light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.source import PART_FOLDERS, ROOT, imports_of, part_files, part_of

ALLOWED = {
    "core": {"core"},
    "layout": {"core", "layout"},
    "backends": {"core", "backends"},
    "kernels": {"core", "layout", "kernels"},
    "engine_integration": {"core", "layout", "kernels", "engine_integration"},
    "entry": {"core", "layout", "backends", "kernels", "engine_integration", "entry"},
}
STANDARD = sys.stdlib_module_names
THIRD_PARTY = {
    "core": {"msgspec"},
    "layout": {"msgspec", "xxhash"},
}
LOADED_WHEN_USED = {("hicache_storage/middleware/encryption.py", "cryptography")}
TORCH_FREE = [
    "engine_integration/consensus",
    "engine_integration/controller",
    "engine_integration/page_store",
    "engine_integration/parallel/agree.py",
    "engine_integration/parallel/pp.py",
    "engine_integration/parallel/thread_group.py",
    "engine_integration/parallel/thread_link.py",
    "engine_integration/radix",
    "engine_integration/replay",
    "engine_integration/store_tier",
    "engine_integration/tiers/arena.py",
    "engine_integration/tiers/sizing.py",
    "engine_integration/tiers/slots.py",
    "backends",
    "layout",
]
HEAVY = {
    "aiohttp",
    "cryptography",
    "jinja2",
    "matplotlib",
    "prometheus_client",
    "tokenizers",
    "torch",
    "triton",
    "numpy",
    "transformers",
    "boto3",
    "botocore",
    "redis",
    "mooncake",
    "pytest",
    "hypothesis",
}


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_down(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in part_files(part)
        for module in imports_of(path)
        if module.split(".")[0] == "hicache_storage" and part_of(module) not in ALLOWED[part]
    ]

    assert wrong == []


@pytest.mark.parametrize("part", THIRD_PARTY)
def test_core_and_layout_need_next_to_nothing(part: str) -> None:
    foreign = {
        (str(path.relative_to(ROOT)), module)
        for path in part_files(part)
        for module in imports_of(path)
        if module.split(".")[0] not in STANDARD | THIRD_PARTY[part] | {"hicache_storage"}
        and (str(path.relative_to(ROOT)), module.split(".")[0]) not in LOADED_WHEN_USED
    }

    assert foreign == set()


def test_words_import_only_the_standard_library() -> None:
    words = [PART_FOLDERS["core"] / name for name in ("errors.py", "types.py", "telemetry.py", "store.py")]

    foreign = {m for path in words for m in imports_of(path) if m.split(".")[0] not in STANDARD | {"hicache_storage"}}

    assert foreign == set()
    assert list(imports_of(words[0])) == []


@pytest.mark.parametrize("part", TORCH_FREE)
def test_torch_free_parts_import_no_torch(part: str) -> None:
    place = ROOT / part
    files = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))

    wrong = [str(path) for path in files for module in imports_of(path) if module.split(".")[0] in {"torch", "numpy"}]

    assert files
    assert wrong == []


@pytest.mark.parametrize(
    "module",
    [
        "hicache_storage",
        "hicache_storage.layout",
        "hicache_storage.engine_integration.page_store",
        "hicache_storage.engine_integration.tiers",
        "hicache_storage.testing.memory",
        "hicache_storage.cli.main",
    ],
)
def test_importing_loads_no_heavy_module(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & sys.modules.keys()))"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert loaded == []
