"""Which backend is meant, and with which options, where a flag says nothing."""

from __future__ import annotations

import pytest

from hicache_storage.config import Setting
from hicache_storage.registry import default_backend, default_extra_config


@pytest.mark.parametrize(
    ("backend", "environ", "expected"),
    [
        (None, {}, "file"),
        (None, {"HICACHE_STORAGE_BACKEND": "s3"}, "s3"),
        ("redis", {"HICACHE_STORAGE_BACKEND": "s3"}, "redis"),
        (None, {"HICACHE_STORAGE_BACKEND": ""}, "file"),
    ],
)
def test_a_backend_s_flag_goes_before_the_environment_and_file_is_the_default(
    backend: str | None, environ: dict[str, str], expected: str
) -> None:
    assert default_backend(backend, environ) == expected


@pytest.mark.parametrize(
    ("flag", "variable", "expected"),
    [
        (None, None, {}),
        (None, "", {}),
        (None, '{"a": 1}', {"a": Setting("a", 1, "environment variable HICACHE_STORAGE_BACKEND_EXTRA_CONFIG")}),
        ('{"a": 2}', '{"a": 1}', {"a": Setting("a", 2, "extra config")}),
        ('{"a": 2}', "{", {"a": Setting("a", 2, "extra config")}),
    ],
)
def test_an_extra_config_s_flag_goes_before_the_environment_and_each_is_named(
    flag: str | None, variable: str | None, expected: dict[str, Setting]
) -> None:
    environ = {} if variable is None else {"HICACHE_STORAGE_BACKEND_EXTRA_CONFIG": variable}

    assert default_extra_config(flag, environ) == expected


def test_the_process_environment_names_the_backend_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND", "demo")
    monkeypatch.setenv("HICACHE_STORAGE_BACKEND_EXTRA_CONFIG", "{}")

    assert (default_backend(None), default_extra_config(None)) == ("demo", {})
