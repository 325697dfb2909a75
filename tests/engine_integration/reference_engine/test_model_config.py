from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from hicache_storage.engine_integration.reference_engine.model_config import Llama3Scaling, read_model_config
from hicache_storage.errors import ConfigError

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

Change: TypeAlias = Callable[..., Path]


@pytest.fixture
def change(tiny_model: Path) -> Change:
    """Overwrite settings of the tiny model's config; None takes one out."""

    def apply(**settings: object) -> Path:
        path = tiny_model / "config.json"
        merged = json.loads(path.read_text()) | settings
        path.write_text(json.dumps({name: value for name, value in merged.items() if value is not None}))
        return tiny_model

    return apply


def test_missing_settings_have_the_defaults_of_the_family(change: Change) -> None:
    config = read_model_config(change(num_key_value_heads=None, head_dim=None, rope_theta=None))

    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (8, 16, 10000.0)


@pytest.mark.parametrize(("eos", "ids"), [(2, (2,)), ([2, 7], (2, 7)), (None, ())])
def test_eos_is_a_number_a_list_or_nothing(change: Change, eos: object, ids: tuple[int, ...]) -> None:
    assert read_model_config(change(eos_token_id=eos)).eos_token_ids == ids


def test_rope_settings_are_read_from_the_old_and_the_new_place(change: Change) -> None:
    old = read_model_config(change(rope_theta=5e5, rope_scaling={"type": "llama3", **LLAMA3}))
    new = read_model_config(
        change(rope_theta=None, rope_scaling=None, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3})
    )

    assert old == new
    assert new.rope_scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_tokens=8192
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "frequency factors"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_what_this_engine_does_not_compute_is_refused_by_name(
    change: Change, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_model_config(change(**settings))


def test_a_folder_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        read_model_config(tmp_path)
