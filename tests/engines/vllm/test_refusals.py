"""What the connector does not serve it refuses when vLLM starts, with words that help."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.engines.vllm.environment import ENVIRONMENT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("served")]


@pytest.fixture(scope="module")
def said(vllm: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    tree = tmp_path_factory.mktemp("tree")
    command = [str(ENVIRONMENT.python), "-m", "tests.engines.vllm.refusals"]
    environ = ENVIRONMENT.environ(tree)
    done = subprocess.run(command, cwd=tree, env=environ, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("missing", "has no KVConnectorBase_V1.get_num_new_matched_tokens(request, num_computed_tokens)"),
        ("policy", '"kv_load_failure_policy": "recompute"'),
        ("dcp", "decode_context_parallel_size = 2"),
        ("draft", "speculative method 'eagle' has KV of its own"),
        ("groups", "in 2 groups"),
        ("sliding", "SlidingWindowSpec"),
    ],
)
def test_refusal_names_what_is_wrong(said: dict[str, str], what: str, words: str) -> None:
    assert words in said[what]


@pytest.mark.parametrize(
    ("what", "words"), [("release", "0.32"), ("served", "None"), ("one_group", "FullAttentionSpec")]
)
def test_what_is_served_is_not_refused(said: dict[str, str], what: str, words: str) -> None:
    assert said[what].startswith(words)
