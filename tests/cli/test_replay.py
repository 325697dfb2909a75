"""`hicache replay`: a trace through simulated tiers, on the trace that ships and on a given one."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from hicache_storage.cli.replay.plot import hit_shares
from hicache_storage.engine_integration.controller import CachedTokens
from hicache_storage.engine_integration.options import TierOptions
from hicache_storage.engine_integration.replay import Replay, Served
from tests.cli.running import Hicache
from tests.engine_integration.replay.traces import SLICE, reusable_blocks, write_trace

BEST = 512 * reusable_blocks(SLICE)
FEW = ("--requests", "40")


def hit_tokens(document: dict[str, object]) -> dict[str, int]:
    total = document["total"]
    assert isinstance(total, dict)
    tokens: dict[str, int] = total["hit_tokens"]
    return tokens


def test_the_trace_that_ships_reaches_its_bound(hicache: Hicache) -> None:
    ended = hicache("replay")

    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "trace      conversation_slice.jsonl: 338 requests, 3,086,344 tokens"
    rows = {" ".join(line.split()[:-2]): line.split()[-2:] for line in lines}
    assert rows["device hits"] == rows["all hits"] == rows["reusable at best"] == [f"{BEST:,}", "66.54"]
    assert rows["computed"] == [f"{3_086_344 - BEST:,}", "33.46"]


def test_a_fleet_as_json(hicache: Hicache) -> None:
    sizes = ("--device-size", "60ktokens", "--host-size", "120ktokens", "--store-size", "400ktokens")

    ended = hicache("replay", "--fleet", "tp4pp2,tp2pp1", "--instances", "3", *sizes, "--json")

    document = ended.json()
    assert ended.status == 0
    assert document["reusable_tokens"] == BEST
    assert hit_tokens(document)["all"] < BEST
    instances = document["instances"]
    assert isinstance(instances, list)
    assert [(one["topology"], one["requests"]) for one in instances] == [
        ("tp4pp2", 113),
        ("tp2pp1", 113),
        ("tp4pp2", 112),
    ]
    for name in ("device", "host", "store", "all"):
        assert sum(one["hit_tokens"][name] for one in instances) == hit_tokens(document)[name]


def test_a_given_trace_is_replayed(hicache: Hicache, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "mine.jsonl", (1000, [1, 2]), (1000, [1, 3]))

    ended = hicache("replay", "--trace", str(path), "--page-size", "128", "--json")

    assert hit_tokens(ended.json())["all"] == 512


@pytest.mark.parametrize("store", [(), ("--store", "file://{folder}")])
def test_bytes_go_through_a_store_and_are_judged(hicache: Hicache, tmp_path: Path, store: tuple[str, ...]) -> None:
    flags = [flag.format(folder=tmp_path / "kv") for flag in store]

    ended = hicache("replay", "--bytes", "--requests", "15", "--fleet", "tp2,pp2", "--device-size", "30ktokens", *flags)

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[-1].startswith("pages compared byte for byte: ")
    assert ended.out.endswith(", all right\n")


def test_wrong_bytes_are_the_status_of_corrupt_data(hicache: Hicache, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = iter(range(1 << 30))
    monkeypatch.setattr(
        "hicache_storage.engine_integration.replay.coded.coded_page",
        lambda layout, page_hash: next(pages).to_bytes(layout.page_nbytes, "little"),
    )

    ended = hicache("replay", "--bytes", *FEW)

    assert ended.status == 4
    assert "WRONG" in ended.out


@pytest.mark.parametrize("field", sorted(TierOptions.__dataclass_fields__))
def test_every_tier_option_that_means_something_has_its_flags(hicache: Hicache, field: str) -> None:
    help_text = hicache("replay", "--help").out

    names = [field, *TierOptions.__dataclass_fields__[field].metadata["aliases"]]
    given = [f"--{name.replace('_', '-')}" in help_text for name in names]
    assert given == [field != "host_memory_fraction"] * len(names)


def test_tier_options_reach_the_tiers(hicache: Hicache) -> None:
    flags = ("--hicache-write-policy", "write_through_selective", "--selective-hits", "1000000")

    ended = hicache("replay", *FEW, *flags, "--json")

    total = ended.json()["total"]
    assert isinstance(total, dict)
    assert total["moved"]["device -> host"] == {"pages": 0, "nbytes": 0}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--trace", "no such file"), "trace no such file cannot be read: No such file or directory"),
        (("--requests", "0"), "--requests 0: expected at least 1"),
        (("--concurrency", "0"), "--concurrency 0: expected at least 1"),
        (("--page-size", "0"), "--page-size 0: expected at least 1"),
        (("--kv-heads", "0"), "--kv-heads 0: expected at least 1"),
        (("--fleet", ","), "expected comma-separated topologies"),
        (("--fleet", "tp2,tp4", "--instances", "1"), "--fleet names 2 topologies"),
        (("--fleet", "tp3"), "cannot divide 8 KV heads"),
        (("--device-size", "lots"), "expected tokens, such as 300ktokens"),
        (("--store", "memory"), "a store needs --bytes"),
        (("--bytes", "--store-size", "1GiB"), "a real store has a capacity of its own"),
        (("--bytes", "--store-tokens-per-s", "5"), "a real store takes the time it takes"),
        (("--store-tokens-per-s", "0"), "expected a number above 0"),
        (("--hicache-write-policy", "never"), "tier option write_policy = 'never' from the command line"),
        (("--host-size", "1GiB", "--hicache-size", "1GiB"), "give one of them"),
        (("--fetch-or-recompute",), "fetch_or_recompute needs prefill_tokens_per_s"),
    ],
)
def test_wrong_flags_are_named_and_nothing_is_replayed(hicache: Hicache, flags: tuple[str, ...], reason: str) -> None:
    ended = hicache("replay", *flags)

    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith(("hicache: ConfigError: ", "hicache: LayoutError: "))
    assert reason in ended.err


def test_tiers_larger_than_any_memory_are_refused(hicache: Hicache) -> None:
    ended = hicache("replay", "--bytes", "--layers", "16000000", "--head-dim", "1000")

    assert (ended.status, ended.out) == (2, "")
    assert "Cannot allocate memory; give smaller tiers" in ended.err


def test_ctrl_c_ends_the_replay_and_its_threads(hicache: Hicache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(replay: Replay) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Replay, "check", interrupted)
    before = set(threading.enumerate())

    ended = hicache("replay", "--check-every", "20", "--instances", "2")

    assert (ended.status, ended.out, ended.err) == (130, "", "hicache: interrupted\n")
    assert [thread.name for thread in set(threading.enumerate()) - before] == []


def test_progress_is_shown_on_a_terminal(hicache: Hicache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

    ended = hicache("replay", *FEW)

    assert ended.err.endswith("replayed [########################] 40/40\n")


def test_a_plot_without_matplotlib_says_what_to_install(
    hicache: Hicache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    ended = hicache("replay", "--plot", str(tmp_path / "hits.png"))

    assert (ended.status, ended.out) == (2, "")
    assert "pip install matplotlib" in ended.err


@pytest.mark.parametrize(("name", "start"), [("hits.png", b"\x89PNG"), ("hits.svg", b"<?xml")])
def test_a_plot_is_drawn_in_the_format_of_its_name(hicache: Hicache, tmp_path: Path, name: str, start: bytes) -> None:
    ended = hicache("replay", *FEW, "--plot", str(tmp_path / name))

    assert (ended.status, ended.err) == (0, "")
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no folder/hits.png", "there is no folder"),
        ("hits.xyz", "should end with one of"),
        ("folder.png", "Is a directory"),
    ],
)
def test_a_plot_that_cannot_be_written_is_said(hicache: Hicache, tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "folder.png").mkdir()

    ended = hicache("replay", *FEW, "--plot", str(tmp_path / name))

    assert (ended.status, ended.out) == (2, "")
    assert reason in ended.err


def test_the_plot_shows_shares_of_the_prompts() -> None:
    hit = Served(0, prompt_tokens=600, cached=CachedTokens(device=100, host=20, store=30), reusable=200)
    refused = Served(0, prompt_tokens=400, cached=None, reusable=100)

    assert hit_shares([hit, refused]) == (10, 2, 3, 30)
