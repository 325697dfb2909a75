"""Tokens to text, piece by piece."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hicache_storage.cli.serve.text import Detokenizer, StopFinder
from tests.cli.serve.toy_tokenizer import ToyTokenizer

TEXTS = ["", "plain", "é", "aé🦄b", "日本語", "\ufffd", "a\ufffd\ufffdb", "🦄" * 40, "👩‍👩‍👧 e\u0301"]
BROKEN = [b"\xf0", b"\xf0\x9f", b"\xf0\x9fa", b"\xff" * 100, b"\xc3\xc3\xa9", b"\xed\xa0\x80", b"a\x80b"]


def pieces(data: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(ToyTokenizer().decode, prompt)
    return [*(detokenizer.push(token) for token in data), detokenizer.finish()]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(pieces(text.encode())) == text


@pytest.mark.parametrize("data", BROKEN)
def test_pieces_of_broken_text_join_to_what_the_decoder_shows(data: bytes) -> None:
    joined = "".join(pieces(data))

    assert joined.replace("\ufffd", "") == data.decode(errors="replace").replace("\ufffd", "")
    assert ("\ufffd" in joined) == ("\ufffd" in data.decode(errors="replace"))


@pytest.mark.parametrize("text", TEXTS)
def test_characters_are_never_shown_in_halves(text: str) -> None:
    shown = "".join(pieces(text.encode())[:-1])

    assert text.startswith(shown)


def test_character_shows_with_its_last_byte() -> None:
    assert pieces("🦄".encode()) == ["", "", "", "🦄", ""]


def test_character_that_the_prompt_began_is_completed() -> None:
    assert pieces("🦄".encode()[2:], prompt=b"look: " + "🦄".encode()[:2]) == ["", "🦄", ""]


def test_text_of_the_prompt_is_never_shown() -> None:
    assert pieces(b"cd", prompt=b"ab") == ["c", "d", ""]


def test_endless_broken_text_is_shown_and_not_kept() -> None:
    decoded: list[int] = []

    def decode(tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return ToyTokenizer().decode(tokens)

    detokenizer = Detokenizer(decode, ())
    shown = "".join(detokenizer.push(0xFF) for _ in range(1000))

    assert len(shown) > 900
    assert max(decoded) < 50


def test_pieces_decoder_joins_are_decoded_together() -> None:
    words = ["▁hello", "▁wor", "ld"]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    detokenizer = Detokenizer(decode, [0])
    assert [detokenizer.push(token) for token in (1, 2, 0)] == [" wor", "ld", " hello"]


def cut(text: str, rng: random.Random) -> list[str]:
    """Return *text* in random pieces."""
    marks = sorted(rng.choices(range(len(text) + 1), k=6))
    return [text[start:stop] for start, stop in zip([0, *marks], [*marks, len(text)], strict=True)]


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("abcdef", ["cd"], "ab"),
        ("abcdef", ["ef", "cd"], "ab"),
        ("abcdef", ["x"], "abcdef"),
        ("abcab", ["abd", "cabx"], "abcab"),
        ("aaaab", ["aab"], "aa"),
        ("ab", ["ab"], ""),
        ("abc", [], "abc"),
        ("\n\nHuman:", ["\n\nHuman:"], ""),
    ],
)
def test_text_ends_before_the_first_stop_string_however_it_is_cut(
    text: str, stops: list[str], shown: str, rng: random.Random
) -> None:
    for _ in range(50):
        finder = StopFinder(stops)
        found = "".join(finder.push(piece) for piece in cut(text, rng)) + finder.finish()

        assert found == shown
        assert finder.found == (shown != text)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    finder = StopFinder(["stop"])

    assert [finder.push(piece) for piece in ("xs", "t", "ar", "sto", "p")] == ["x", "", "star", "", ""]
