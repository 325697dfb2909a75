"""A request shares KV only with requests whose KV is the same, and not at all where nobody can know."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hicache_storage.engine_integration.adapters.vllm import scope as module
from hicache_storage.engine_integration.adapters.vllm.scope import Scope, Scopes
from hicache_storage.layout import request_seed


@dataclass
class Adapter:
    """As vLLM's LoRARequest."""

    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


@dataclass
class Asked:
    """As vLLM's Request."""

    lora_request: Adapter | None = None
    cache_salt: str | None = None
    mm_features: list[object] = field(default_factory=list)
    prompt_embeds: object = None
    prompt_token_ids: list[int] | None = field(default_factory=lambda: [1, 2, 3])
    resumable: bool = False
    skip_reading_prefix_cache: bool = False


def scope(scopes: Scopes, request: Asked) -> Scope | None:
    return scopes.of(request)


def write(folder: Path, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write(tmp_path / "adapter", b"one" * 1000)


def test_plain_request_shares_with_all_plain_requests() -> None:
    assert scope(Scopes(), Asked()) == Scope(None)


@pytest.mark.parametrize(
    "request_",
    [
        Asked(mm_features=[object()]),
        Asked(prompt_embeds=object()),
        Asked(prompt_token_ids=None),
        Asked(resumable=True),
        Asked(skip_reading_prefix_cache=True),
    ],
    ids=["images", "embeddings", "no-tokens", "session", "no-cache"],
)
def test_request_whose_tokens_do_not_say_all_is_not_shared(request_: Asked) -> None:
    assert scope(Scopes(), request_) is None


def test_salts_are_kept_apart() -> None:
    assert scope(Scopes(), Asked(cache_salt="a")) == Scope(request_seed(cache_salt="a"))


def test_adapter_never_shares_with_the_model_or_with_another(adapter: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", b"two" * 1000)

    found = {
        scope(Scopes(), Asked(Adapter("a", 1, str(adapter)))),
        scope(Scopes(), Asked(Adapter("a", 1, str(other)))),
        scope(Scopes(), Asked(Adapter("b", 1, str(adapter)))),
        scope(Scopes(), Asked(Adapter("a", 1, str(adapter)), cache_salt="s")),
        Scope(None),
    }

    assert len(found) == 5
    assert None not in found


def test_same_adapter_is_shared_wherever_it_lies(adapter: Path, tmp_path: Path) -> None:
    copy = write(tmp_path / "copy", b"one" * 1000)

    assert scope(Scopes(), Asked(Adapter("a", 1, str(adapter)))) == scope(Scopes(), Asked(Adapter("a", 7, str(copy))))


def test_adapter_that_is_loaded_again_is_shared_again(adapter: Path, tmp_path: Path) -> None:
    scopes = Scopes()
    copy = write(tmp_path / "copy", b"one" * 1000)

    found = [scope(scopes, Asked(Adapter("a", number, str(path)))) for number, path in enumerate((adapter, copy), 1)]

    assert found[0] == found[1] is not None


def test_name_that_has_stood_for_another_content_is_not_shared_any_more(adapter: Path) -> None:
    """vLLM keeps the KV of the content before under the same name."""
    scopes = Scopes()
    scope(scopes, Asked(Adapter("a", 1, str(adapter))))
    write(adapter, b"two" * 1000)

    assert scope(scopes, Asked(Adapter("a", 2, str(adapter)))) is None
    write(adapter, b"one" * 1000)
    assert scope(scopes, Asked(Adapter("a", 3, str(adapter)))) is None


def test_adapter_whose_files_change_is_not_shared_any_more(adapter: Path) -> None:
    scopes = Scopes()
    scope(scopes, Asked(Adapter("a", 1, str(adapter))))
    weights = adapter / "adapter_model.safetensors"
    times = weights.stat()
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns + 1))

    assert scope(scopes, Asked(Adapter("a", 1, str(adapter)))) is None
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert scope(scopes, Asked(Adapter("a", 1, str(adapter)))) is None


@pytest.mark.parametrize("path", ["org/on-the-hub", "/nowhere"])
def test_adapter_that_is_no_folder_is_not_shared(path: str) -> None:
    assert scope(Scopes(), Asked(Adapter("a", 1, path))) is None


def test_adapter_that_is_loaded_in_place_is_not_shared(adapter: Path) -> None:
    scopes = Scopes()

    assert scope(scopes, Asked(Adapter("a", 1, str(adapter), load_inplace=True))) is None
    assert scope(scopes, Asked(Adapter("a", 1, str(adapter)))) is None


def test_files_of_an_adapter_that_is_not_shared_are_not_read(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fingerprint", lambda _: pytest.fail("read"))
    scopes = Scopes()

    for _ in range(2):
        assert scope(scopes, Asked(Adapter("a", 1, str(adapter), load_inplace=True))) is None
    assert scope(scopes, Asked(Adapter("a", 2, str(adapter)))) is None
