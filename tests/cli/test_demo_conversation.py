"""From a text to what a model is told, turn by turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from hicache_storage.cli.demo.conversation import Conversation, converse, read_texts
from hicache_storage.errors import ConfigError

CHAT = ("<|im_start|>", "<|im_end|>")


def tokenizer_of(*special: str) -> Tokenizer:
    """Return a tokenizer whose tokens are characters, and *special*."""
    letters = {chr(code): code for code in range(128)}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in special])
    return tokenizer


def told(tokenizer: Tokenizer, tokens: tuple[int, ...]) -> str:
    """Return what *tokens* stand for."""
    return "".join(tokenizer.id_to_token(token) or "" for token in tokens)


def test_trailing_paragraphs_marked_as_questions_are_asked_in_their_order() -> None:
    tokenizer = tokenizer_of()

    talk = converse("A ship.\n\nIt sails.\n\nQuestion: What?\n\nQuestion: Why?\n", tokenizer)

    assert talk.questions == ("Question: What?", "Question: Why?")
    assert told(tokenizer, talk.opening) == "A ship.\n\nIt sails.\n\nQuestion: What?"
    assert [told(tokenizer, tokens) for tokens in talk.follow_ups] == ["\n\nQuestion: Why?"]


@pytest.mark.parametrize(
    ("text", "questions"),
    [("One.\n\nTwo.", ("Two.",)), ("One.", ()), ("Question: One?\n\nA document.\n\nTwo?", ("Two?",))],
)
def test_without_a_mark_the_last_of_several_paragraphs_is_the_question(text: str, questions: tuple[str, ...]) -> None:
    assert converse(text, tokenizer_of()).questions == questions


def test_a_model_that_chats_is_told_whose_turn_it_is() -> None:
    tokenizer = tokenizer_of(*CHAT)

    talk = converse("A ship.\n\nQuestion: What?\n\nQuestion: Why?", tokenizer)

    asked = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    assert told(tokenizer, talk.opening) == asked.format("A ship.\n\nQuestion: What?")
    assert told(tokenizer, talk.follow_ups[0]) == "\n" + asked.format("Question: Why?")


@pytest.mark.parametrize("answer", [(7, 8), (7, 8, 99)])
def test_an_answer_that_was_cut_short_is_closed_and_one_that_is_closed_is_not_closed_again(
    answer: tuple[int, ...],
) -> None:
    talk = Conversation(questions=("a", "b"), opening=(1, 2), follow_ups=((3, 4),), turn_stop=99)

    assert talk.next_prompt((1, 2), answer, 1) == (1, 2, 7, 8, 99, 3, 4)


def test_no_prompt_is_longer_than_what_is_reserved_for_it() -> None:
    talk = Conversation(questions=("a", "b"), opening=(1,) * 10, follow_ups=((3,) * 5,), turn_stop=99)

    last = talk.next_prompt(talk.opening, (7,) * 6, 1)

    assert len(last) + 6 <= talk.most_tokens(6)


def test_documents_of_our_own_are_there_and_have_several_turns() -> None:
    talks = [converse(text, tokenizer_of(*CHAT)) for text in read_texts([])]

    assert len(talks) >= 2
    assert min(talk.num_turns for talk in talks) >= 2


def test_a_document_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--prompt-file .*missing\.txt cannot be read: No such file"):
        read_texts([tmp_path / "missing.txt"])


def test_an_empty_document_is_refused() -> None:
    with pytest.raises(ConfigError, match="no text"):
        converse("  \n", tokenizer_of())
