"""Text to tokens and back, by the files of a model folder. Free of transformers, which takes seconds to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer as FileTokenizer

from hicache_storage.cli.serve.api_error import ApiError
from hicache_storage.cli.serve.chat_template import ChatTemplate
from hicache_storage.errors import ConfigError


class Tokenizer(Protocol):
    """What the server needs of a tokenizer. Called from several threads."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a prompt, with those that the model wants at its beginning."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of *tokens*, special ones left out."""
        ...

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a conversation, up to where the assistant's answer begins.

        Raises:
            ApiError: the model's template refuses it, or there is none.
        """
        ...


class FolderTokenizer:
    """The tokenizer and the chat template of a model folder.

    Raises:
        ConfigError: a file is there and cannot be read, or ``tokenizer.json`` is missing.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{folder} has no tokenizer.json")
        try:
            self._tokenizer = FileTokenizer.from_file(str(path))
        except Exception as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._template = ChatTemplate.of_folder(folder)

    def encode(self, text: str) -> list[int]:
        return self._encoded(text, add_special_tokens=True)

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if self._template is None:
            raise ApiError("this model has no chat template; use /v1/completions", code="no_chat_template")
        return self._encoded(self._template.render(messages), add_special_tokens=False)

    def _encoded(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # A batch, since `encode` keeps the interpreter to itself: a prompt of megabytes would stop the whole server.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        tokens: list[int] = encoding.ids
        return tokens


class NoTokenizer:
    """Of a model without one: prompts are token ids, and so are answers (``return_token_ids``)."""

    def encode(self, _text: str) -> list[int]:
        raise ApiError("this model has no tokenizer; give the prompt as token ids", param="prompt", code="no_tokenizer")

    def decode(self, _tokens: Sequence[int]) -> str:
        return ""

    def apply_chat(self, _messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise ApiError("this model has no tokenizer; use /v1/completions with token ids", code="no_tokenizer")


def find_tokenizer(folder: Path) -> Tokenizer:
    """Return the folder's tokenizer, or `NoTokenizer` where it has none."""
    return FolderTokenizer(folder) if (folder / "tokenizer.json").is_file() else NoTokenizer()
