"""F1-F3, F18: a key says what an object holds, the same everywhere, and nothing else collides with it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from array import array
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hicache_storage.errors import ConfigError, LayoutError
from hicache_storage.layout import Chunk, Namespace, ObjectKey, Variant, object_key, page_hashes, request_seed

BASE = Namespace(
    model_id="org/m",
    dtype="bfloat16",
    page_size=64,
    rank_replicated=False,
    total_kv_heads=8,
    layer_partition=30,
    head_partition=2,
)
ONE_FIELD_CHANGED = [
    replace(BASE, model_id="org-m"),
    replace(BASE, model_id="org_m"),
    replace(BASE, model_id="org/M"),
    replace(BASE, dtype="float16"),
    replace(BASE, dtype="float8_e4m3fn"),
    replace(BASE, dtype="float8_e5m2"),
    replace(BASE, dtype="uint8"),
    replace(BASE, page_size=32),
    replace(BASE, rank_replicated=True),
    replace(BASE, total_kv_heads=4),
    replace(BASE, layer_partition=15),
    replace(BASE, head_partition=1),
    replace(BASE, object_layout="page-unified-v2"),
    *(
        replace(BASE, variant=Variant(**{name: "x"}))
        for name in ("weights_revision", "rope_scaling", "quantization_scales", "component", "tokenizer", "multimodal")
    ),
    replace(BASE, variant=Variant(weights_revision="y")),
]
PAGE = "ab" * 32


def test_each_namespace_field_changes_the_digest() -> None:
    digests = [namespace.digest for namespace in [BASE, *ONE_FIELD_CHANGED]]

    assert len(set(digests)) == len(digests)


def test_base_digest_is_frozen() -> None:
    assert BASE.digest == "ukv1-dea1a4a45c9e0671"


def test_unset_variant_fields_leave_the_digest_as_it_is() -> None:
    assert replace(BASE, variant=Variant()).digest == BASE.digest


def test_spellings_of_one_dtype_are_one_dtype() -> None:
    assert {replace(BASE, dtype=name).digest for name in ("bf16", "torch.bfloat16", "BFloat16")} == {BASE.digest}


def test_moving_characters_between_fields_changes_the_digest() -> None:
    one = replace(BASE, variant=Variant(weights_revision="ab", rope_scaling="c"))
    other = replace(BASE, variant=Variant(weights_revision="a", rope_scaling="bc"))

    assert one.digest != other.digest


@given(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8))
def test_odd_characters_in_names_never_collide(one: str, other: str) -> None:
    digests = [replace(BASE, model_id=name).digest for name in (one, other)]

    assert (digests[0] == digests[1]) == (one == other)


@pytest.mark.parametrize("name", ["", "\ud800", "x" * 5000])
def test_model_id_that_cannot_be_named_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="model_id"):
        replace(BASE, model_id=name)


def test_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="bfloat16"):
        replace(BASE, dtype="float12")


@pytest.mark.parametrize(
    "chunk", [Chunk(range(30), 0), Chunk(range(30, 60), 3), Chunk(range(26), None)], ids=lambda chunk: chunk.suffix
)
def test_key_reads_back_as_what_it_was_made_of(chunk: Chunk) -> None:
    key = object_key(PAGE, BASE.digest, chunk.suffix)

    assert ObjectKey.parse(key) == ObjectKey(PAGE, BASE.digest, chunk)
    assert str(ObjectKey.parse(key)) == key


def test_key_has_the_published_form() -> None:
    assert object_key(PAGE, BASE.digest, "L30-60_H2") == f"{PAGE}_{BASE.digest}_L30-60_H2"


@pytest.mark.parametrize(
    "key",
    [
        "",
        PAGE,
        f"{PAGE}_{BASE.digest}",
        f"{PAGE}_{BASE.digest}_L0-0",
        f"{PAGE}_{BASE.digest}_L5-3",
        f"{PAGE}_{BASE.digest}_L00-3",
        f"{PAGE}_{BASE.digest}_L0-3_H01",
        f"{PAGE}_{BASE.digest}_L0-3_H",
        f"{PAGE}_{BASE.digest}_L0-3_H1\n",
        f"{PAGE.upper()}_{BASE.digest}_L0-3",
        f"{PAGE[:-1]}_{BASE.digest}_L0-3",
        f"../{PAGE}_{BASE.digest}_L0-3",
        f"{PAGE}_ukv1-xyz_L0-3",
        f"{PAGE}_{BASE.digest}_L0-٣",
        f"{PAGE}_{BASE.digest}_L0-999999999999999999999",
    ],
)
def test_what_is_no_key_is_not_taken_for_one(key: str) -> None:
    with pytest.raises(LayoutError):
        ObjectKey.parse(key)


def test_container_and_integer_type_of_tokens_do_not_matter() -> None:
    tokens = [0, 1, 2**31 - 1, 151_643, 7, 9, 11, 13]
    same: list[Iterable[int]] = [
        tokens,
        tuple(tokens),
        iter(tokens),
        array("q", tokens),
        np.array(tokens, dtype=np.int32),
        np.array(tokens, dtype=np.int64),
        np.array(tokens, dtype=np.uint32),
        [np.int64(token) for token in tokens],  # type: ignore[misc]  # not an int to a checker, and taken all the same
        torch.tensor(tokens, dtype=torch.int64),
    ]

    assert len({tuple(page_hashes(each, 4)) for each in same}) == 1


@pytest.mark.parametrize("tokens", [[-1, 0], [2**32, 0], [1.5, 0], ["1", 0]], ids=str)
def test_what_is_no_token_id_is_refused(tokens: list[int]) -> None:
    with pytest.raises(LayoutError, match="token ids"):
        page_hashes(tokens, 2)


@pytest.mark.parametrize(
    "tokens",
    [bytes(16), b"", bytearray(16), memoryview(bytes(16))],
    ids=lambda tokens: f"{type(tokens).__name__}-{len(tokens)}",
)
def test_raw_bytes_are_no_tokens(tokens: Iterable[int]) -> None:
    with pytest.raises(LayoutError, match=f"token ids.*{type(tokens).__name__}"):
        page_hashes(tokens, 4)


@pytest.mark.parametrize("text", ["", "12345678"])
def test_text_is_no_tokens(text: str) -> None:
    with pytest.raises(LayoutError, match=r"token ids.*str"):
        page_hashes(text, 4)  # type: ignore[arg-type]  # what a caller without a checker may do


def test_view_of_integers_is_tokens() -> None:
    tokens = [5, 6, 7, 2**31]

    assert page_hashes(memoryview(array("I", tokens)), 4) == page_hashes(tokens, 4)


@pytest.mark.parametrize("prior", ["", "xyz", "AB" * 32, "ab" * 31])
def test_malformed_prior_is_refused(prior: str) -> None:
    with pytest.raises(LayoutError, match="page hash"):
        page_hashes([1, 2], 2, prior=prior)


def test_a_chain_continues_where_it_was_cut() -> None:
    tokens = list(range(100, 132))
    whole = page_hashes(tokens, 8)

    assert whole[:2] + page_hashes(tokens[16:], 8, prior=whole[1]) == whole


def test_request_scopes_share_no_page() -> None:
    tokens = [5] * 256
    scopes = list(itertools.product([None, "a", "b"], [None, "1", "2"]))

    pages = [
        page_hash
        for salt, lora in scopes
        for page_hash in page_hashes(tokens, 64, prior=request_seed(cache_salt=salt, lora_id=lora))
    ]

    assert len(set(pages)) == len(scopes) * 4


def test_unscoped_request_has_no_seed() -> None:
    assert request_seed() is None


def test_scope_fields_cannot_be_cut_differently() -> None:
    fields = [None, "", "a", "ab", "abc", "b", "bc", "c"]
    seeds = [
        request_seed(extra_key=extra, cache_salt=salt, lora_id=lora)
        for extra, salt, lora in itertools.product(fields, repeat=3)
    ]

    assert len(set(seeds)) == len(fields) ** 3


PROGRAM = """
import sys
from array import array
from dataclasses import replace
import numpy as np
from hicache_storage.layout import Namespace, Variant, page_hashes, request_seed
tokens = [int(token) for token in sys.argv[2:]]
containers = [tokens, tuple(tokens), array("q", tokens), np.array(tokens, np.int32), np.array(tokens, np.int64)]
chains = {" ".join(page_hashes(each, int(sys.argv[1]))) for each in containers}
namespace = Namespace(model_id="org/m", dtype="bfloat16", page_size=64, rank_replicated=False, total_kv_heads=8,
                      layer_partition=30, head_partition=2)
varied = replace(namespace, variant=Variant(rope_scaling="yarn", component="draft"))
print(*chains)
print(namespace.digest, varied.digest, page_hashes(range(8), 4, prior=request_seed(lora_id="l", cache_salt="s")))
"""


def test_keys_are_the_golden_ones_in_every_process() -> None:
    vectors = json.loads((Path(__file__).parent / "golden" / "sglang_0.5.23.json").read_text())["page_hash"]
    golden = next(each for each in vectors if each["prior"] is None and len(each["tokens"]) >= 2 * each["page_tokens"])
    full_pages = len(golden["tokens"]) // golden["page_tokens"]

    answers = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(golden["page_tokens"]), *map(str, golden["tokens"])],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345", "random")
    }

    assert len(answers) == 1
    chain, rest = answers.pop().splitlines()
    assert chain.split() == golden["chain"][:full_pages]
    assert rest.startswith("ukv1-dea1a4a45c9e0671 ")
