"""Hidden values are separated from shown ones, and joined again."""

from typing import Any

import pytest

from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.secrets.detection import SecretDetector, as_shown

SPEC = ToolSpec(
    name="Fetch",
    description="Fetch.",
    category=ToolCategory.OTHER,
    parameters=(
        ToolParameter(name="url", type="string", description="Where."),
        ToolParameter(name="auth", type="any", description="How.", sensitive=True),
    ),
    extra=True,
)
TEXT = "hunter22-is-long"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"url": "u", "auth": TEXT}, {"url": "u", "auth": "[redacted]"}),
        ({"url": "u", "auth": {"deep": [TEXT]}}, {"url": "u", "auth": "[redacted]"}),
        ({"auth": 4711, "url": "at 4711"}, {"auth": "[redacted]", "url": "at 4711"}),
        ({"url": "u", "authh": TEXT}, {"url": "u", "authh": "[redacted]"}),
        ({"url": f"u?k={TEXT}", "auth": TEXT}, {"url": "u?k=[redacted]", "auth": "[redacted]"}),
    ],
)
def test_parting_and_joining_gives_back_what_was_given(given: dict[str, Any], shown: dict[str, Any]) -> None:
    parts = SecretDetector(SPEC).part(given)

    assert parts is not None
    assert (parts.shown, list(parts.shown)) == (shown, list(given))
    assert SecretDetector.join(parts.shown, parts.encrypted).parameters == given


def test_what_only_quotes_a_secret_is_none_itself() -> None:
    parts = SecretDetector(SPEC).part({"url": f"u?k={TEXT}", "auth": TEXT})

    assert parts is not None
    assert parts.names == ("auth", "url")
    assert SecretDetector.join(parts.shown, parts.encrypted).secrets == (TEXT,)


@pytest.mark.parametrize("given", [{"url": "u"}, {}, {"url": "u", "auth": "secret://NAME"}])
def test_where_nothing_is_to_be_hidden_nothing_is(given: dict[str, Any]) -> None:
    assert SecretDetector(SPEC).part(given) is None


def test_inside_an_object_what_has_the_name_of_a_secret_is_hidden() -> None:
    env = {"GITHUB_TOKEN": TEXT, "LANG": "C", "PASSWORD": "short", "API_KEY": "secret://KEY", "deep": [{"token": TEXT}]}
    spec = ToolSpec(
        **{**SPEC.model_dump(), "parameters": (ToolParameter(name="env", type="object", description="E."),)}
    )
    detector = SecretDetector.of(spec)

    parts = detector and detector.part({"env": env})

    assert parts is not None
    assert parts.shown["env"] == {
        "GITHUB_TOKEN": "[redacted]",
        "LANG": "C",
        "PASSWORD": "[redacted]",
        "API_KEY": "secret://KEY",
        "deep": [{"token": "[redacted]"}],
    }
    opened = SecretDetector.join(parts.shown, parts.encrypted)
    assert opened.parameters == {"env": env}
    assert set(opened.secrets) == {TEXT, "short"}


def test_a_tool_of_plain_texts_and_numbers_has_nothing_to_conceal() -> None:
    plain = SPEC.model_copy(update={"parameters": SPEC.parameters[:1], "extra": False})

    assert SecretDetector.of(plain) is None


def test_a_reference_among_other_values_is_hidden_with_them() -> None:
    parts = SecretDetector(SPEC).part({"auth": {"user": "u", "key": "secret://NAME"}})

    assert parts is not None
    assert parts.shown == {"auth": "[redacted]"}


def test_a_tool_that_takes_any_name_hides_what_says_that_it_is_a_secret() -> None:
    detector = SecretDetector.of(SPEC.model_copy(update={"parameters": SPEC.parameters[:1]}))
    given = {"url": "u", "password": TEXT, "mode": "fast", "options": {"api_key": TEXT + "!", "deep": [1]}}

    parts = detector and detector.part(given)

    assert parts is not None
    assert parts.shown == {
        "url": "u",
        "password": "[redacted]",
        "mode": "fast",
        "options": {"api_key": "[redacted]", "deep": [1]},
    }
    assert SecretDetector.join(parts.shown, parts.encrypted).parameters == given


def test_people_see_a_call_without_its_secrets_and_what_quotes_them() -> None:
    closed = SPEC.model_copy(update={"parameters": SPEC.parameters[:1], "extra": False})

    assert as_shown(SPEC, {"url": f"u?k={TEXT}", "auth": TEXT}) == {"url": "u?k=[redacted]", "auth": "[redacted]"}
    assert as_shown(SPEC, {"auth": "secret://NAME"}) == {"auth": "secret://NAME"}
    assert as_shown(closed, {"url": "u", "password": TEXT}) == {"url": "u", "password": "[redacted]"}
