"""A model's own chat template, rendered as transformers does: Jinja in a sandbox, since templates are somebody's code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hicache_storage.cli.serve.api_error import ApiError
from hicache_storage.errors import ConfigError

_DEFAULT = "default"


class _Named(msgspec.Struct):
    name: str
    template: str


class _Added(msgspec.Struct):
    """A token as older files write it."""

    content: str


class _Settings(msgspec.Struct):
    """The part of ``tokenizer_config.json`` that templates need."""

    chat_template: str | list[_Named] | None = None
    bos_token: str | _Added | None = None
    eos_token: str | _Added | None = None
    unk_token: str | _Added | None = None
    pad_token: str | _Added | None = None

    def special_tokens(self) -> dict[str, str]:
        """Return the special tokens' text by name."""
        tokens = {name: getattr(self, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        texts = {name: token.content if isinstance(token, _Added) else token for name, token in tokens.items()}
        return {name: text for name, text in texts.items() if text is not None}


class ChatTemplate:
    """A template and the special tokens it may use.

    Args:
        source: Jinja.
        special_tokens: text by name, such as ``bos_token``.

    Raises:
        ConfigError: *source* is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            # Prompts are text for a model, not for a browser.
            autoescape=False,
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template is no Jinja: {error}") from error
        self._special_tokens = dict(special_tokens)

    @classmethod
    def of_folder(cls, folder: Path) -> ChatTemplate | None:
        """Return the template of a model folder; None if it has none.

        Raises:
            ConfigError: a file cannot be read.
        """
        path = folder / "tokenizer_config.json"
        try:
            settings = _Settings()
            if path.is_file():
                settings = msgspec.json.decode(path.read_bytes(), type=_Settings)
            beside = folder / "chat_template.jinja"
            source = beside.read_text(encoding="utf-8") if beside.is_file() else _default_of(settings.chat_template)
        except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise ConfigError(f"the chat template in {folder} cannot be read: {error}") from error
        return None if source is None else cls(source, settings.special_tokens())

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the conversation as the model was trained to see it, up to where its answer begins.

        Raises:
            ApiError: the template refuses the messages.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ApiError(f"the model's chat template refuses the messages: {error}", param="messages") from error


def _default_of(template: str | list[_Named] | None) -> str | None:
    if isinstance(template, list):
        return next((one.template for one in template if one.name == _DEFAULT), None)
    return template


def _to_json(value: object, indent: int | None = None) -> str:
    """Return *value* as JSON; Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
