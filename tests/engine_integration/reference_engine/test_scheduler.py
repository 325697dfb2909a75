"""Which request computes what: on a coded model, whose tokens tell whether every page was the right one."""

from __future__ import annotations

import random

import pytest

from hicache_storage.engine_integration.reference_engine.messages import Failed, Generate, Token
from tests.engine_integration.reference_engine.coded_model import PAGE_TOKENS, CodedEngine, expected, request


def pieces_of(engine: CodedEngine) -> list[list[tuple[int, int]]]:
    """Return, for each batch, where each of its pieces starts and stops."""
    return [[(piece.start, piece.stop) for piece in batch] for batch in engine.model.batches]


def test_a_prompt_is_computed_in_chunks_and_then_token_by_token() -> None:
    engine = CodedEngine(chunk_tokens=8)

    engine.generate(request("a", 19, 3))
    engine.run()

    assert pieces_of(engine) == [[(0, 8)], [(8, 16)], [(16, 19)], [(19, 20)], [(20, 21)]]
    assert engine.said("a") == expected(request("a", 19, 3))
    assert engine.reason("a") == "length"


def test_chunks_end_at_multiples_wherever_a_prefix_ends() -> None:
    engine = CodedEngine(chunk_tokens=8)
    first = request("a", 13, 1)

    engine.generate(first)
    engine.run()
    engine.generate(Generate("b", (*first.tokens, *range(10)), 1))
    engine.run()

    assert pieces_of(engine)[2:] == [[(12, 16)], [(16, 23)]]


def test_each_step_computes_one_chunk_and_a_token_of_everybody_else() -> None:
    engine = CodedEngine(chunk_tokens=8)

    engine.generate(request("a", 8, 9), request("b", 24, 9), request("c", 16, 9))
    engine.step(6)

    assert pieces_of(engine) == [
        [(0, 8)],
        [(8, 9), (0, 8)],
        [(9, 10), (8, 16)],
        [(10, 11), (16, 24)],
        [(11, 12), (24, 25), (0, 8)],
        [(12, 13), (25, 26), (8, 16)],
    ]


def test_tokens_are_those_of_each_request_alone() -> None:
    engine = CodedEngine()
    requests = [request(name, length, 12) for name, length in (("a", 5), ("b", 24), ("c", 1), ("d", 17))]

    engine.generate(*requests)
    engine.run()

    assert [engine.said(one.request_id) for one in requests] == [expected(one) for one in requests]
    assert engine.held() == 0


def test_the_first_token_says_what_was_cached() -> None:
    engine = CodedEngine()
    engine.generate(request("a", 19, 6))
    engine.run()

    engine.generate(Generate("again", request("a", 19).tokens, 2))
    engine.run()

    (first, second) = [event for event in engine.events if isinstance(event, Token) and event.request_id == "again"]
    assert (first.cached_device, second.cached_device) == (16, 0)


def test_at_most_so_many_requests_run() -> None:
    engine = CodedEngine(max_running=2)

    engine.generate(*(request(name, 4, 6) for name in "abcd"))
    engine.step(4)

    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (2, 2)
    assert max(map(len, engine.model.batches)) == 2


@pytest.mark.parametrize(
    ("is_eos", "is_asked_for", "ignores_eos", "reason"),
    [
        (True, False, False, "stop"),
        (True, False, True, "length"),
        (True, True, True, "stop"),
        (False, True, False, "stop"),
    ],
)
def test_a_text_ends_at_a_stop_token(is_eos: bool, is_asked_for: bool, ignores_eos: bool, reason: str) -> None:
    whole = expected(request("a", 7, 20))
    last = whole[5]
    engine = CodedEngine(eos=last if is_eos else None)

    engine.generate(request("a", 7, 20, stop_tokens=(last,) if is_asked_for else (), ignore_eos=ignores_eos))
    engine.run()

    assert engine.said("a") == (whole[: whole.index(last) + 1] if reason == "stop" else whole)
    assert engine.reason("a") == reason


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Generate("a", (), 1), "no token"),
        (Generate("a", (1, 97), 1), "token ids"),
        (Generate("a", (-1,), 1), "token ids"),
        (Generate("a", (1,), 0), "max_new_tokens"),
        (Generate("a", (1,), 1, temperature=-0.1), "temperature"),
        (Generate("a", (1,), 1, temperature=float("nan")), "temperature"),
        (Generate("a", (1,), 1, top_p=0.0), "top_p"),
        (Generate("a", (1,), 1, lora_id="\ud800"), "UTF-8"),
    ],
)
def test_a_request_with_a_wrong_value_fails_and_holds_nothing(wrong: Generate, reason: str) -> None:
    engine = CodedEngine()

    engine.generate(wrong)
    engine.step()

    (event,) = engine.events
    assert isinstance(event, Failed)
    assert reason in event.reason
    assert not event.is_too_large
    assert engine.held() == 0


@pytest.mark.parametrize(("tokens", "new_tokens"), [(40, 2), (1, 41), (20, 22)])
def test_a_request_that_can_never_fit_fails_as_too_large(tokens: int, new_tokens: int) -> None:
    engine = CodedEngine(pages=10)

    engine.generate(request("large", tokens, new_tokens), request("fits", tokens, new_tokens - 1))
    engine.run()

    failures = [event for event in engine.events if isinstance(event, Failed)]
    assert [(event.request_id, event.is_too_large) for event in failures] == [("large", True)]
    assert engine.said("fits") == expected(request("fits", tokens, new_tokens - 1))


def test_a_request_longer_than_the_model_fails_as_too_large() -> None:
    engine = CodedEngine(pages=100)

    engine.generate(request("large", 190, 12))
    engine.step()

    assert [isinstance(event, Failed) and event.is_too_large for event in engine.events] == [True]


def test_a_second_request_of_the_same_id_fails_and_the_first_goes_on() -> None:
    engine = CodedEngine()

    engine.generate(request("a", 5), request("a", 6))
    engine.run()

    assert isinstance(engine.events[0], Failed)
    assert engine.said("a") == expected(request("a", 5))


@pytest.mark.parametrize("steps", range(6))
def test_an_aborted_request_lets_go_of_everything_in_any_state(steps: int) -> None:
    engine = CodedEngine(max_running=1)
    engine.generate(request("a", 20, 9), request("b", 20, 9))
    engine.step(steps)

    for name in ("a", "b", "unknown"):
        engine.scheduler.abort(name)
    engine.step()

    assert (engine.reason("a"), engine.reason("b")) == ("abort", "abort")
    assert engine.scheduler.is_idle
    assert engine.held() == 0


def test_whoever_waits_for_room_is_not_overtaken() -> None:
    engine = CodedEngine(pages=12)

    engine.generate(request("a", 24, 8), request("large", 30, 4), request("small", 4, 4))
    engine.run()

    first_tokens = dict.fromkeys(event.request_id for event in engine.events if isinstance(event, Token))
    assert list(first_tokens) == ["a", "large", "small"]
    assert engine.said("large") == expected(request("large", 30, 4))


@pytest.mark.parametrize("length", [9, 10, 11, 12])
def test_the_youngest_gives_its_pages_to_the_oldest(length: int) -> None:
    engine = CodedEngine(pages=10)
    requests = [request("old", 12, 24), request("young", length, 24)]

    engine.generate(*requests)
    engine.run()

    ended = [event.request_id for event in engine.events if isinstance(event, Token) and event.finish_reason]
    assert ended == ["old", "young"]
    assert [engine.said(one.request_id) for one in requests] == [expected(one) for one in requests]
    assert engine.counters["preemptions"] > 0
    assert engine.held() == 0


@pytest.mark.parametrize("end", ["length", "stop", "abort"])
@pytest.mark.parametrize("new_tokens", range(1, 6))
def test_what_a_request_leaves_behind_has_kv(end: str, new_tokens: int) -> None:
    engine = CodedEngine()
    whole = expected(request("a", 9, 12))
    limits = {"length": {}, "stop": {"stop_tokens": (whole[new_tokens - 1],)}, "abort": {}}
    engine.generate(request("a", 9, new_tokens if end == "length" else 12, **limits[end]))
    engine.step(1 + new_tokens)
    engine.scheduler.abort("a")

    later = Generate("later", (*request("a", 9).tokens, *whole), 5)
    engine.generate(later)
    engine.run()

    assert engine.said("later") == expected(later)


def test_a_shared_prefix_needs_its_room_once() -> None:
    engine = CodedEngine(pages=14)
    shared = request("shared", 36).tokens

    engine.generate(Generate("a", (*shared, 1), 8))
    engine.step(6)
    engine.generate(Generate("b", (*shared, 2), 8))
    engine.step(2)

    assert engine.scheduler.num_running == 2


def test_a_restore_that_fails_is_computed_again_with_the_same_tokens() -> None:
    engine = CodedEngine()
    failures = iter([True, True, False, True, False, False])
    engine.model.is_restored = lambda _: next(failures, True)

    engine.generate(request("a", 20, 6), request("b", 9, 6))
    engine.run()

    assert [engine.said(name) for name in "ab"] == [expected(request("a", 20, 6)), expected(request("b", 9, 6))]
    assert engine.counters["restores_failed"] == 3
    assert engine.held() == 0


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_on_a_small_device_all_get_their_tokens(seed: int) -> None:
    rng = random.Random(seed)
    engine = CodedEngine(pages=rng.randint(10, 24), chunk_tokens=rng.choice([3, 4, 8, 100]), max_running=5)
    heads = [request(name, 24).tokens for name in ("x", "y")]
    requests: list[Generate] = []
    engine.model.is_restored = lambda _: rng.random() > 0.03

    for serial in range(40):
        prompt = (*rng.choice(heads)[: rng.randint(0, 24)], serial)
        requests.append(Generate(f"{serial}", prompt, rng.randint(1, 4 * PAGE_TOKENS - 1)))
        engine.generate(requests[-1])
        engine.step(rng.randint(0, 6))
        if rng.random() < 0.2:
            engine.scheduler.abort(f"{rng.randint(0, serial)}")
    engine.run()

    for one in requests:
        said, whole = engine.said(one.request_id), expected(one)
        assert said == whole or (engine.reason(one.request_id) == "abort" and said == whole[: len(said)])
    assert engine.held() == 0


def test_requests_that_say_the_same_share_pages_and_disturb_nobody() -> None:
    engine = CodedEngine(pages=40, max_running=6)
    same = [Generate(name, request("same", 10).tokens, 30) for name in ("a", "b", "c")]
    others = [request(name, 3, 30) for name in ("x", "y")]

    engine.generate(*same, *others)
    engine.run()

    assert [engine.said(one.request_id) for one in (*same, *others)] == [expected(one) for one in (*same, *others)]
    assert engine.held() == 0


@pytest.mark.parametrize("pages", range(8, 13))
def test_a_preempted_request_leaves_only_what_has_kv(pages: int) -> None:
    for length in range(5, 17):
        engine = CodedEngine(pages=pages)
        requests = [request("old", 9, 20), request("young", length, 14)]

        engine.generate(*requests)
        engine.run()

        assert [engine.said(one.request_id) for one in requests] == [expected(one) for one in requests]
