"""The tokenizer and chat template of a model folder."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from hicache_storage.cli.serve.api_error import ApiError
from hicache_storage.cli.serve.chat_template import ChatTemplate
from hicache_storage.cli.serve.tokenizer import FolderTokenizer, NoTokenizer, find_tokenizer
from hicache_storage.errors import ConfigError
from tests.cli.serve.toy_folder import EOS, TEMPLATE, write_tokenizer

MESSAGES = [{"role": "system", "content": "<b>&"}, {"role": "user", "content": "hi 🦄"}]
RENDERED = f"system: <b>&{EOS}\nuser: hi 🦄{EOS}\nassistant: "
DEADLINE_S = 30.0


@pytest.fixture
def tokenizer(tmp_path: Path) -> FolderTokenizer:
    write_tokenizer(tmp_path)
    return FolderTokenizer(tmp_path)


@pytest.fixture
def no_thread_is_interrupted() -> Iterator[None]:
    """A thread runs until it gives way by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(10 * DEADLINE_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("text", ["", "plain", "é 🦄 日本", "a\nb\tc  d"])
def test_text_comes_back_whole(tokenizer: FolderTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_have_no_text(tokenizer: FolderTokenizer) -> None:
    tokens = tokenizer.encode(f"a{EOS}b")

    assert (len(tokens), tokenizer.decode(tokens)) == (3, "ab")


def test_conversation_is_rendered_and_encoded(tokenizer: FolderTokenizer) -> None:
    assert tokenizer.apply_chat(MESSAGES) == tokenizer.encode(RENDERED)


@pytest.mark.usefixtures("no_thread_is_interrupted")
@pytest.mark.parametrize("is_chat", [False, True])
def test_server_goes_on_while_a_prompt_is_encoded(tokenizer: FolderTokenizer, is_chat: bool) -> None:
    text = "a long prompt " * 1000
    messages = [{"role": "user", "content": text}]
    encode = partial(tokenizer.apply_chat, messages) if is_chat else partial(tokenizer.encode, text)
    begun, ran = threading.Lock(), threading.Event()
    begun.acquire()

    def event_loop() -> None:
        with begun:
            ran.set()

    thread = threading.Thread(target=event_loop)
    thread.start()
    begun.release()
    deadline_s = time.monotonic() + DEADLINE_S
    while not ran.is_set() and time.monotonic() < deadline_s:
        encode()
    has_run = ran.is_set()
    thread.join()

    assert has_run


def test_template_renders_as_transformers_does(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token=EOS)  # type: ignore[no-untyped-call]
    theirs.chat_template = TEMPLATE

    rendered = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)

    assert rendered == RENDERED
    assert ChatTemplate(TEMPLATE, {"eos_token": EOS}).render(MESSAGES) == RENDERED


def test_template_of_its_own_file_wins(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages | length }}")

    template = ChatTemplate.of_folder(tmp_path)

    assert template is not None
    assert template.render(MESSAGES) == "2"


def test_named_templates_have_a_default(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}'
    )

    template = ChatTemplate.of_folder(tmp_path)

    assert template is not None
    assert template.render(MESSAGES) == "d"


def test_model_without_a_template_has_no_chat(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, template=None)

    with pytest.raises(ApiError, match="no chat template"):
        FolderTokenizer(tmp_path).apply_chat(MESSAGES)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('the user begins') }}", "the user begins"),
        ("{{ messages[0]['content'] + 1 }}", "str"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{% for i in range(9999999) %}{% endfor %}", "[Rr]ange"),
    ],
)
def test_template_that_refuses_or_misbehaves_is_an_answer(source: str, reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as refused:
        ChatTemplate(source, {}).render(MESSAGES)

    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_template_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="chat template is no Jinja"):
        ChatTemplate("{% if %}", {})


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        find_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ConfigError, match="chat template in"):
        ChatTemplate.of_folder(tmp_path)


def test_folder_without_a_tokenizer_serves_tokens(tmp_path: Path) -> None:
    assert isinstance(find_tokenizer(tmp_path), NoTokenizer)
