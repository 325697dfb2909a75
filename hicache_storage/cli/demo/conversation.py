"""Conversations in tokens: a document, a question about it, and what is asked next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer

from hicache_storage.errors import ConfigError

_TURN_START = "<|im_start|>"
_TURN_STOP = "<|im_end|>"
QUESTION = "Question:"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is said to the model about one document; what the model says comes between.

    Attributes:
        questions: as text, the first of them part of *opening*; empty where a document has none.
        opening: tokens of the document and of the first question.
        follow_ups: tokens of the questions behind it, each with what opens and closes its turn.
        turn_stop: the token with which a model ends its turn; None where its tokenizer has no such.
    """

    questions: tuple[str, ...]
    opening: tuple[int, ...]
    follow_ups: tuple[tuple[int, ...], ...]
    turn_stop: int | None

    @property
    def num_turns(self) -> int:
        return 1 + len(self.follow_ups)

    def next_prompt(self, prompt: Sequence[int], answer: Sequence[int], turn: int) -> tuple[int, ...]:
        """Return the prompt of *turn*, counted from 0: the one before it, its answer, the next question."""
        is_closed = self.turn_stop is None or answer[-1] == self.turn_stop
        closing = () if is_closed or self.turn_stop is None else (self.turn_stop,)
        return (*prompt, *answer, *closing, *self.follow_ups[turn - 1])

    def most_tokens(self, max_new_tokens: int) -> int:
        """Return how long the whole can become, each answer of *max_new_tokens* at most."""
        asked = len(self.opening) + sum(len(question) for question in self.follow_ups)
        return asked + self.num_turns * (max_new_tokens + 1)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a model folder.

    Raises:
        ConfigError: `tokenizer.json` is missing or unreadable.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_texts(paths: Sequence[Path]) -> list[str]:
    """Return the text of each of *paths*, or the demo's own documents if there are none.

    Raises:
        ConfigError: a file cannot be read as text.
    """
    if not paths:
        own = (file for file in resources.files(__package__).iterdir() if file.name.endswith(".txt"))
        return [file.read_text(encoding="utf-8") for file in sorted(own, key=lambda file: file.name)]
    return [_read(path) for path in paths]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--prompt-file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompt-file {path} is no UTF-8 text: {error}") from error


def converse(text: str, tokenizer: Tokenizer) -> Conversation:
    """Return *text* as a conversation: a document, and the paragraphs behind it that begin with ``Question:``.

    Without such a paragraph the last one, if there are several, is the question. Document and questions are
    tokenised apart, so that another question behind the same document shares the document's pages. Models with
    ChatML tokens get a user's turns, others the plain text.

    Raises:
        ConfigError: there is no text.
    """
    document, questions = _split(text)
    speaks_chat = tokenizer.token_to_id(_TURN_START) is not None and tokenizer.token_to_id(_TURN_STOP) is not None
    opening, closing = (f"{_TURN_START}user\n", f"{_TURN_STOP}\n{_TURN_START}assistant\n") if speaks_chat else ("", "")
    between = "\n" if speaks_chat else "\n\n"
    gap = "\n\n" if questions else ""
    first = questions[0] if questions else ""
    tokens: list[int] = tokenizer.encode(opening + document + gap).ids
    if not tokens:
        raise ConfigError("a document of no text has nothing to cache")
    return Conversation(
        questions=tuple(questions),
        opening=(*tokens, *_ids(tokenizer, first + closing)),
        follow_ups=tuple(_ids(tokenizer, between + opening + question + closing) for question in questions[1:]),
        turn_stop=tokenizer.token_to_id(_TURN_STOP) if speaks_chat else None,
    )


def _split(text: str) -> tuple[str, list[str]]:
    """Return the document and its questions, with the word that marks them: models take it as a hint."""
    document, questions = text.strip(), list[str]()
    while (paragraphs := document.rpartition("\n\n"))[1] and paragraphs[2].startswith(QUESTION):
        questions.insert(0, paragraphs[2])
        document = paragraphs[0].rstrip()
    if not questions:
        document, _, question = document.rpartition("\n\n")
        return (document, [question]) if document else (question, [])
    return document, questions


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return tuple(ids)
