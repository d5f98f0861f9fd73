"""Secrets are known by their looks, if that is asked for."""

import time

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.secrets.detection import WELL_KNOWN, Patterns, SecretDetector

BASH = ToolSpec(
    name="Run",
    description="Run.",
    category=ToolCategory.OTHER,
    parameters=(ToolParameter(name="command", type="string", description="What."),),
)


@pytest.mark.parametrize(
    "secret",
    [
        "AKIA" + "A1" * 8,
        "ghp_" + "a1" * 18,
        "github_pat_" + "a1" * 20,
        "glpat-" + "a1" * 10,
        "sk-ant-" + "a1" * 20,
        "sk_live_" + "a1" * 10,
        "xoxb-" + "12345-" * 3,
        "AIza" + "a" * 35,
        "npm_" + "a1" * 18,
        "hf_" + "a1" * 17,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128-CBC,77\n\nMIIB\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_well_known_shapes_are_found_and_only_they_are_hidden(secret: str) -> None:
    parts = SecretDetector(BASH, Patterns([WELL_KNOWN])).part({"command": f"use '{secret}' now"})

    assert parts is not None
    assert parts.shown == {"command": "use '[redacted]' now"}
    opened = SecretDetector.join(parts.shown, parts.encrypted)
    assert (opened.parameters, opened.secrets) == ({"command": f"use '{secret}' now"}, (secret,))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("curl -H 'Authorization: Bearer abcdefgh12345678'", "curl -H 'Authorization: Bearer [redacted]'"),
        ("psql postgresql://ada:hunter22@db/x", "psql postgresql://[redacted]@db/x"),
        ("psql postgresql://ada:hunt@r22@db/x", "psql postgresql://[redacted]@db/x"),
    ],
)
def test_what_stands_where_secrets_stand_is_one(text: str, shown: str) -> None:
    parts = SecretDetector(BASH, Patterns([WELL_KNOWN])).part({"command": text})

    assert parts is not None
    assert parts.shown == {"command": shown}


@pytest.mark.parametrize(
    "text", ["git log --oneline", "http://localhost:8080/x", "risk-free-" + "a" * 30, "AKIA", "me@host:22"]
)
def test_plain_texts_are_left_alone(text: str) -> None:
    assert SecretDetector(BASH, Patterns([WELL_KNOWN])).part({"command": text}) is None


def test_keys_that_begin_and_never_end_cost_no_more_than_their_length() -> None:
    patterns, begun = Patterns([WELL_KNOWN]), "-----BEGIN PRIVATE KEY-----\n" * 8000

    began = time.process_time()
    assert patterns.found_in(begun) == []

    assert time.process_time() - began < 2, "each that searches the whole text takes ten seconds together"


def test_own_patterns_are_looked_for_too() -> None:
    parts = SecretDetector(BASH, Patterns([r"ACME-\d{8}"])).part({"command": "login ACME-12345678"})

    assert parts is not None
    assert parts.shown == {"command": "login [redacted]"}


def test_by_default_nothing_is_looked_for() -> None:
    assert SecretDetector.of(BASH, Patterns.of(Settings.load().encrypt_patterns)) is None


@pytest.mark.parametrize(("pattern", "said"), [("(", "not a regular expression"), ("x*", "matches an empty text")])
def test_a_pattern_that_cannot_be_meant_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Settings.load(encrypt_patterns=(pattern,))
