"""The prompt: a document, whose full pages are the cached prefix, and a question behind it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer

from hicache_storage.errors import ConfigError

_TURN_START = "<|im_start|>"
_TURN_STOP = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, of which the first `num_pages` full pages are looked up in the store.

    At least one token follows these pages: a model must compute something to say what comes next.
    """

    tokens: list[int]
    num_pages: int
    page_tokens: int

    @property
    def prefix_tokens(self) -> int:
        return self.num_pages * self.page_tokens


def read_text(path: Path | None) -> str:
    """Return the text of *path*, or the demo's own document.

    Raises:
        ConfigError: the file cannot be read as text.
    """
    if path is None:
        return (resources.files(__package__) / "document.txt").read_text(encoding="utf-8")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--prompt-file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompt-file {path} is no UTF-8 text: {error}") from error


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a model folder.

    Raises:
        ConfigError: `tokenizer.json` is missing or unreadable.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no tokenizer.json")
    return Tokenizer.from_file(str(path))


def make_prompt(text: str, tokenizer: Tokenizer, *, page_tokens: int) -> Prompt:
    """Return *text* as a prompt; its last paragraph, if there are several, is the question.

    Document and question are tokenised apart, so that another question behind the same document
    shares the document's pages. Models with ChatML tokens get a user's turn, others the plain text.

    Raises:
        ConfigError: the document fills no page.
    """
    document, gap, question = text.strip().rpartition("\n\n")
    if not document:
        document, question = question, ""
    opening = closing = ""
    if tokenizer.token_to_id(_TURN_START) is not None and tokenizer.token_to_id(_TURN_STOP) is not None:
        opening, closing = f"{_TURN_START}user\n", f"{_TURN_STOP}\n{_TURN_START}assistant\n"
    prefix: list[int] = tokenizer.encode(opening + document + gap).ids
    suffix: list[int] = tokenizer.encode(question + closing, add_special_tokens=False).ids
    num_pages = len(prefix) // page_tokens
    if not suffix and num_pages * page_tokens == len(prefix):
        num_pages -= 1
    if num_pages < 1:
        raise ConfigError(f"the document has {len(prefix)} tokens, which is no full page of {page_tokens} to cache")
    return Prompt(prefix + suffix, num_pages, page_tokens)
