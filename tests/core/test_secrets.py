"""A secret reaches the SDK that needs it and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
from dataclasses import dataclass

import msgspec
import pytest

from hicache_storage.config import Secret, from_mapping, option, resolve
from hicache_storage.errors import ConfigError
from hicache_storage.secret_url import SecretUrl, parse_secret_url

VALUE = "open sesame"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    password: Secret = option(doc="password of the store", env=("STORE_PASSWORD",))
    token: Secret | None = option(None, doc="session token")
    url: Secret | None = option(None, doc="address of the store", parse=parse_secret_url)


def refusal(*sources: dict[str, object], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(Options, "demo", [from_mapping(values, "options") for values in sources], environ or {})
    return str(caught.value)


def test_reveal_gives_the_value() -> None:
    assert Secret(VALUE).reveal() == VALUE


@pytest.mark.parametrize(
    "shown",
    [
        str(Secret(VALUE)),
        repr(Secret(VALUE)),
        f"{Secret(VALUE)}",
        f"{Secret(VALUE)!s:>20}",
        f"{Secret(VALUE):>20}",
        "%s %r" % (Secret(VALUE), Secret(VALUE)),  # noqa: UP031 - logging formats this way
        "{!s} {!r}".format(*[Secret(VALUE)] * 2),
        repr([Secret(VALUE)]),
        repr({"password": Secret(VALUE)}),
        repr(Options(password=Secret(VALUE))),
        repr(dataclasses.asdict(Options(password=Secret(VALUE)))),
        json.dumps({"password": Secret(VALUE)}, default=str),
    ],
)
def test_no_way_of_printing_shows_the_value(shown: str) -> None:
    assert VALUE not in shown
    assert "***" in shown


def test_encoders_refuse_a_secret_instead_of_writing_it_out() -> None:
    with pytest.raises(TypeError):
        json.dumps([Secret(VALUE)])
    with pytest.raises(TypeError):
        msgspec.json.encode(Options(password=Secret(VALUE)))
    with pytest.raises(TypeError):
        "".join(["a", Secret(VALUE)])  # type: ignore[list-item]


def test_logging_masks_it(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("demo").warning(
        "store.denied password=%s options=%r", Secret(VALUE), Options(password=Secret(VALUE))
    )

    assert VALUE not in caplog.text


def test_equal_values_are_equal_secrets() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret("a") != "a"
    assert copy.deepcopy(Secret("a")).reveal() == "a"


@pytest.mark.parametrize(
    ("values", "environ"),
    [({"password": VALUE}, {}), ({}, {"HICACHE_DEMO_PASSWORD": VALUE}), ({}, {"STORE_PASSWORD": VALUE})],
)
def test_every_source_gives_a_masked_secret(values: dict[str, object], environ: dict[str, str]) -> None:
    options, settings = resolve(Options, "demo", [from_mapping(values, "options")], environ)

    assert options.password.reveal() == VALUE
    assert VALUE not in repr(options) + repr(settings) + str(settings[0].value)


def test_a_setting_that_is_not_parsed_yet_hides_its_value() -> None:
    assert VALUE not in repr(from_mapping({"password": VALUE}, "options"))


def test_no_error_message_shows_the_value() -> None:
    assert VALUE not in refusal({"password": [VALUE]})
    assert VALUE not in refusal({"password": {"value": VALUE}})
    assert VALUE not in refusal({"token": [VALUE], "password": "x"})
    assert VALUE not in refusal({"pasword": VALUE})
    contradiction = refusal({"password": VALUE}, {"password": "another"})
    assert "given twice: '***' in options and '***' in options" in contradiction


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/team/kv", "s3://bucket/team/kv"),
        ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/2"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        (f"redis://kv:{VALUE}@host:6379/0", "redis://kv:***@host:6379/0"),
        (f"redis://:{VALUE}@host", "redis://:***@host"),
        (f"redis://{VALUE}@host", "redis://***@host"),
        (f"redis://host?password={VALUE}", "redis://host?***"),
        (f"redis://:{VALUE}/@host", "***"),
        (f"redis://:{VALUE}#@host", "***"),
        (f"redis://:{VALUE}?@host", "***"),
        (f"redis://:x@{VALUE}@host", "***"),
        (f"redis://:{VALUE}", "***"),
        (f"redis://host:{VALUE}", "***"),
        (f"redis://[{VALUE}", "***"),
        (VALUE, "***"),
        ("", "***"),
    ],
)
def test_a_url_shows_where_it_leads_and_no_secret(url: str, shown: str) -> None:
    assert [str(SecretUrl(url)), f"{SecretUrl(url)}", repr(SecretUrl(url))] == [shown, shown, repr(shown)]
    assert VALUE not in repr([SecretUrl(url)])
    assert SecretUrl(url).reveal() == url


def test_a_wrong_url_is_not_shown() -> None:
    message = refusal({"password": "", "url": [f"redis://:{VALUE}@host"]})

    assert "url = '***' from options: expected text (address of the store)" in message
    assert VALUE not in message
