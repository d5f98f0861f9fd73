"""Secrets are taken out in every form in which programs write them."""

import base64
import json
import time
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tools.model import ToolCategory, ToolParameter, ToolResult, ToolSpec
from forge_tools.model.secret_names import REDACTED
from forge_tools.secrets.scrubber import CONCEALED, LEAST, Scrubber, forms_of, leaves, scrubbed, scrubber_of

SECRET = 'p4ss "word"\\ é+/&='
SPEC = ToolSpec(
    name="Login",
    description="Log in.",
    category=ToolCategory.OTHER,
    parameters=(
        ToolParameter(name="user", type="string", description="Who."),
        ToolParameter(name="secret", type="any", description="What.", sensitive=True, aliases=("pw",)),
    ),
)


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        repr(SECRET)[1:-1],
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        SECRET.encode().hex(),
        base64.b64encode(SECRET.encode()).decode().rstrip("="),
        base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
    ],
)
def test_every_form_of_a_secret_is_found_inside_a_text(form: str) -> None:
    assert Scrubber([SECRET]).text(f"before {form} after") == "before [redacted] after"


@pytest.mark.parametrize("before", ["", "u:", "us:", "use:", "user:"])
def test_a_secret_is_found_inside_what_was_encoded_together(before: str) -> None:
    secret = "correct-horse-battery"
    encoded = base64.b64encode(f"{before}{secret}\n".encode()).decode()

    text = Scrubber([secret]).text(f"Authorization: Basic {encoded}")

    assert "[redacted]" in text
    left = text.removeprefix("Authorization: Basic ").replace("[redacted]", "")
    assert len(left) <= len(before) * 4 / 3 + 7, left


@given(st.text(st.characters(exclude_characters="[redacted]"), min_size=6), st.text(), st.text())
def test_no_secret_survives_whatever_it_is_and_stands_around_it(secret: str, before: str, after: str) -> None:
    assert secret not in Scrubber([secret]).text(f"{before}{secret}{after}")
    assert secret not in Scrubber([secret]).value([{secret: before + secret}])[0]


@pytest.mark.parametrize("secret", ["", "x", "true", "12345"])
def test_a_short_secret_shreds_no_result(secret: str) -> None:
    scrubber = Scrubber([secret])

    assert not scrubber
    assert scrubber.text("it is true that 12345 x") == "it is true that 12345 x"


def test_a_result_is_scrubbed_wherever_it_has_the_secret_and_left_alone_elsewhere() -> None:
    result = ToolResult.ok({"s3cret-key": ["a s3cret-key", 1234567, 12, None, True]}, seen={"deep": ("s3cret-key",)})

    clean = Scrubber(["s3cret-key", "1234567"]).result(result)

    assert clean.output == {"[redacted]": ["a [redacted]", "[redacted]", 12, None, True]}
    assert clean.metadata["seen"] == {"deep": ["[redacted]"]}
    assert result.output["s3cret-key"][0] == "a s3cret-key"


def test_a_private_key_is_found_line_by_line() -> None:
    lines = ["-----BEGIN X-----", "MIIBVwIBADANBgkqhkiG9w0BAQEF", "AASCAT8wggE7AgEAAkEAq7BFUpkG", "-----END X-----"]

    text = Scrubber(["\n".join(lines)]).text(f"log: {lines[1]}\nlog: {lines[2]}")

    assert text == "log: [redacted]\nlog: [redacted]"


def test_depth_without_end_is_left_as_it_is() -> None:
    deep: list[object] = []
    deep.append(deep)

    assert isinstance(Scrubber(["s3cret-key"]).value(deep), list)
    assert list(leaves(deep)) == []


def test_without_a_secret_nothing_is_copied() -> None:
    value = {"a": ["b"]}

    assert scrubbed(value) is value


def test_what_is_ambient_counts_for_whatever_is_said_meanwhile() -> None:
    token = CONCEALED.set(Scrubber(["s3cret-key"]))
    try:
        assert scrubbed({"at": "s3cret-key"}) == {"at": "[redacted]"}
        both = scrubber_of(SPEC, {"pw": "another-one"})
        assert both is not None
        assert both.text("s3cret-key another-one") == "[redacted] [redacted]"
    finally:
        CONCEALED.reset(token)


def test_a_tool_without_secrets_has_nothing_to_be_scrubbed() -> None:
    plain = ToolSpec(**{**SPEC.model_dump(), "parameters": SPEC.parameters[:1]})

    assert scrubber_of(plain, {"user": "ada", "pw": "unknown"}) is None
    assert scrubber_of(SPEC, {"user": "ada"}) is None


def test_a_misspelt_name_may_be_that_of_the_secret() -> None:
    scrubber = scrubber_of(SPEC, {"sercet": {"deep": "s3cret-key"}})

    assert scrubber is not None
    assert scrubber.text("s3cret-key") == "[redacted]"


def test_what_can_be_read_only_once_is_left_to_the_tool() -> None:
    given = iter(["s3cret-key"])

    scrubber_of(SPEC, {"secret": given})

    assert list(given) == ["s3cret-key"]


def one_by_one(forms: set[str], text: str) -> str:
    """The simple way: every place of every form, and one mark for those that overlap."""
    places = sorted({(at, at + len(form)) for form in forms for at in range(len(text)) if text.startswith(form, at)})
    clean, done = "", 0
    for start, end in places:
        if start >= done:
            clean += f"{text[done:start]}[redacted]"
        done = max(done, end)
    return clean + text[done:]


PIECES = st.text("abcde[]rt1=", min_size=3, max_size=16)


@given(st.sets(PIECES, max_size=12), st.lists(st.one_of(PIECES, st.integers(0, 11)), max_size=12))
def test_very_many_secrets_are_taken_out_as_if_each_was_looked_for(secrets: set[str], parts: list[str | int]) -> None:
    few, known = Scrubber(secrets, least=3), sorted(secrets) or [""]
    text = "".join(part if isinstance(part, str) else known[part % len(known)] for part in parts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("forge_tools.secrets.readings.FEW", 0)
        many = Scrubber(secrets, least=3)

        assert (
            many.text(text)
            == one_by_one({form for secret in secrets for form in forms_of(secret, 3)}, text)
            == few.text(text)
        )


def test_ten_thousand_secrets_cost_a_text_hardly_more_than_one() -> None:
    secrets = [f"{number:05}-{number * 7919:032x}" for number in range(10_000)]
    scrubber, text = Scrubber(secrets), "nothing to be seen here, " * 400
    scrubber.text(text)  # the index is made at the first one

    began = time.process_time()
    for _ in range(20):
        scrubber.text(text)
    spent = (time.process_time() - began) / 20

    assert spent < 0.05, "one by one it takes a quarter of a second"
    assert scrubber.text(f"{text}{secrets[77]}{text}") == f"{text}[redacted]{text}"


@given(st.text(min_size=6, max_size=40))
def test_the_forms_of_a_secret_are_those_that_programs_write(secret: str) -> None:
    forms, data = set(forms_of(secret, LEAST)), secret.encode("utf-8", "surrogatepass")

    written = [secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]]
    encoded = [quote(data), quote(data, safe=""), quote_plus(data), data.hex(), data.hex().upper()]
    in_base64 = [base64.b64encode(data), base64.urlsafe_b64encode(data)]
    assert {*written, *encoded, *(one.decode().rstrip("=") for one in in_base64)} <= forms


def test_a_worker_that_knows_all_secrets_of_a_call_looks_for_them_once() -> None:
    known = Scrubber(["s3cret-key", "another-one"])
    token = CONCEALED.set(known)
    try:
        assert scrubber_of(SPEC, {"pw": "another-one"}) is known
    finally:
        CONCEALED.reset(token)


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("key", [("s3cret-key",), b"s3cret-key", frozenset({"s3cret-key"}), 12345678, Silent()])
def test_a_key_that_is_not_text_is_looked_at_as_messages_quote_it(key: Any) -> None:
    scrubber = Scrubber(["s3cret-key", "12345678"])

    assert scrubber.value({key: 1, ("other",): 2, 5: 3, None: 4}) == {REDACTED: 1, ("other",): 2, 5: 3, None: 4}


@pytest.mark.parametrize(
    "secrets", [("first-secret", "secret-second-and-longer"), ("secret-second-and-longer", "first-secret")]
)
def test_nothing_of_secrets_that_overlap_is_shown(secrets: tuple[str, str]) -> None:
    assert Scrubber(secrets).text("it is first-secret-second-and-longer.") == "it is [redacted]."
