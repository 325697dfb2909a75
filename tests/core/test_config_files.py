"""`--hicache-storage-backend-extra-config`: JSON on the command line, or a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hicache_storage.config import Setting, load_extra_config
from hicache_storage.errors import ConfigError

BODIES = {
    "kv.json": '{"path": "/mnt/kv", "io_threads": 4, "direct": true}',
    "kv.yaml": "path: /mnt/kv\nio_threads: 4\ndirect: true\n",
    "kv.yml": "{path: /mnt/kv, io_threads: 4, direct: true}",
    "kv.toml": 'path = "/mnt/kv"\nio_threads = 4\ndirect = true\n',
    "KV.JSON": '{"path": "/mnt/kv", "io_threads": 4, "direct": true}',
}


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_extra_config(text)
    return str(caught.value)


def test_json_on_the_command_line_is_its_own_source() -> None:
    assert load_extra_config('{"path": "/mnt/kv"}') == {"path": Setting("path", "/mnt/kv", "extra config")}


@pytest.mark.parametrize("name", BODIES)
def test_every_format_gives_the_same_options_and_names_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(BODIES[name])

    settings = load_extra_config(f"@{path}")

    assert {setting.name: setting.value for setting in settings.values()} == {
        "path": "/mnt/kv",
        "io_threads": 4,
        "direct": True,
    }
    assert {setting.source for setting in settings.values()} == {str(path)}


@pytest.mark.parametrize("text", ["[]", '"path"', "1", "null", "true"])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    assert "expected an object of options" in refusal(text)


@pytest.mark.parametrize(("name", "body"), [("a.json", "[1]"), ("a.yaml", ""), ("a.yaml", "- a"), ("a.yaml", "1: 2")])
def test_a_file_that_holds_no_object_is_refused_by_name(tmp_path: Path, name: str, body: str) -> None:
    path = tmp_path / name
    path.write_text(body)

    message = refusal(f"@{path}")

    assert str(path) in message
    assert "expected an object of options" in message


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.json", b'{"path": '),
        ("a.json", b'{"path": "\xff"}'),
        ("a.json", b'{"a": ' + b"[" * 100_000),
        ("a.json", b""),
        ("a.yaml", b'path: "x'),
        ("a.yaml", b"\xff\xfe"),
        ("a.yaml", b"a: !!python/object/apply:os.getcwd []"),
        ("a.toml", b"path = "),
        ("a.toml", b"path = \xff"),
        ("a.toml", b"a = " + b"[" * 100_000),
    ],
)
def test_a_file_that_does_not_parse_is_refused_by_name(tmp_path: Path, name: str, body: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(body)

    assert refusal(f"@{path}").startswith(str(path))


@pytest.mark.parametrize("text", ["", "{", "path=/mnt/kv", "{'path': 1}", '{"a": "\udcff"}'])
def test_a_command_line_that_does_not_parse_is_refused(text: str) -> None:
    assert "extra config is not valid JSON" in refusal(text)


def test_a_syntax_error_does_not_show_the_secret_beside_it(tmp_path: Path) -> None:
    for name, body in (
        ("a.yaml", 'password: "sesame\nx: 1'),
        ("a.toml", 'password = "sesame'),
        ("a.json", '{"p": "sesame'),
    ):
        path = tmp_path / name
        path.write_text(body)

        assert "sesame" not in refusal(f"@{path}")


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    path.write_text('{"path": "' + "x" * (1 << 20) + '"}')

    assert refusal(f"@{path}") == f"{path} is over 1048576 bytes"


def test_a_command_line_over_the_limit_is_refused() -> None:
    assert refusal('{"path": "' + "x" * (1 << 20) + '"}') == "extra config is over 1048576 bytes"


@pytest.mark.parametrize(
    ("name", "why"), [("none.json", "No such file or directory"), ("folder.json", "Is a directory")]
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "folder.json").mkdir()

    assert refusal(f"@{tmp_path / name}") == f"extra config {tmp_path / name} cannot be read: {why}"


@pytest.mark.parametrize("name", ["kv.ini", "kv", "kv.json.bak"])
def test_a_file_of_another_kind_says_which_kinds_there_are(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")

    assert refusal(f"@{tmp_path / name}").endswith("expected a .json, .yaml, .yml or .toml file")


def test_a_missing_yaml_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "kv.yaml"
    path.write_text("path: /mnt/kv")

    assert "pip install 'hicache-storage[yaml]'" in refusal(f"@{path}")


def test_the_caller_may_name_the_source() -> None:
    assert load_extra_config("{}", "environment variable X") == {}
    with pytest.raises(ConfigError, match="environment variable X is not valid JSON"):
        load_extra_config("{", "environment variable X")
