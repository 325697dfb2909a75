"""What the connector does not serve it refuses when vLLM starts, with words that help."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.engines.vllm.environment import ENVIRONMENT
from tests.engines.vllm.small_models import save_llama

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("served")]


@pytest.fixture(scope="module")
def said(vllm: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("said")
    hub = folder / "hub" / "models--org--model"
    for path, text in (("refs/main", "0123abc"), ("snapshots/0123abc/config.json", "{}")):
        (hub / path).parent.mkdir(parents=True, exist_ok=True)
        (hub / path).write_text(text)
    command = [str(ENVIRONMENT.python), "-m", "tests.engines.vllm.refusals"]
    command += [str(save_llama(folder / "model")), f"file://{folder / 'kv'}"]
    tree = folder / "tree"
    environ = ENVIRONMENT.environ(tree) | {"HF_HUB_CACHE": str(folder / "hub")}
    done = subprocess.run(command, cwd=tree, env=environ, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("missing", "has no KVConnectorBase_V1.get_num_new_matched_tokens(request, num_computed_tokens)"),
        ("policy", '"kv_load_failure_policy": "recompute"'),
        ("role", '"kv_role": "kv_both", and "read_only": true'),
        ("dcp", "decode_context_parallel_size = 2"),
        ("draft", "speculative method 'eagle' has KV of its own"),
        ("diffusion", "again and again"),
        ("pooling", "pools or attends over all tokens"),
        ("groups", "in 2 groups"),
        ("sliding", "SlidingWindowSpec"),
        ("option", "no option 'head_partitions' (from kv_connector_extra_config)"),
        ("early", "no option 'head_partitions' (from kv_connector_extra_config)"),
        ("store_option", "file has no option 'bogus' (from kv_connector_extra_config.extra_config)"),
        ("page", "page_tokens = 48 is no multiple of vLLM's block of 32"),
    ],
)
def test_refusal_names_what_is_wrong(said: dict[str, str], what: str, words: str) -> None:
    assert words in said[what]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("release", "0.32"),
        ("served", "None"),
        ("decoder", "None"),
        ("one_group", "FullAttentionSpec"),
        ("started", "HiCacheConnector"),
    ],
)
def test_what_is_served_is_not_refused(said: dict[str, str], what: str, words: str) -> None:
    assert said[what].startswith(words)


@pytest.mark.parametrize(("what", "revision"), [("commit", "0123abc"), ("branch", "not-here"), ("no_hub", "None")])
def test_weights_from_the_hub_are_named_by_their_commit(said: dict[str, str], what: str, revision: str) -> None:
    assert said[what] == revision


@pytest.mark.parametrize(("what", "words"), [("long", "longrope-long"), ("short", "longrope-short"), ("plain", "None")])
def test_factors_of_a_longer_context_have_a_namespace_of_their_own(said: dict[str, str], what: str, words: str) -> None:
    assert said[what] == words


@pytest.mark.parametrize(("what", "answer"), [("reset", (True, True)), ("reader_reset", (False, False))])
def test_who_only_reads_deletes_nothing(said: dict[str, str], what: str, answer: tuple[bool, bool]) -> None:
    assert said[what] == str(answer)


def test_workers_reports_of_a_step_become_one(said: dict[str, str]) -> None:
    assert said["report"] == str(([("a", 1), ("b", 2)], 7))


def test_report_that_vllm_takes_a_step_later_is_not_lost(said: dict[str, str]) -> None:
    """As it does with drafts where the next step computes nothing."""
    assert said["later"] == str(([("a", 1), ("b", 2)], 7, None))
