"""Claims that hide something are decrypted on the engine's side, or end with what is missing."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionStatus, ToolCategory, ToolParameter, ToolSpec, new_id
from forge_tools.model.execution import Claim, Outcome
from forge_tools.secrets.detection import SecretDetector
from forge_tools.secrets.encryption import Encryptor, KeyFolder
from workers.middleware.decryption import Decryption

LOGIN = ToolSpec(
    name="Login",
    description="Log in.",
    category=ToolCategory.OTHER,
    parameters=(
        ToolParameter(name="url", type="string", description="Where."),
        ToolParameter(name="pw", type="any", description="The secret.", sensitive=True),
        ToolParameter(name="env", type="object", description="More.", required=False),
    ),
)
SECRET = "hunter22-is-long"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path)


@pytest.fixture
def encryptor(settings: Settings) -> Encryptor:
    return Encryptor(KeyFolder(settings.keys_folder).new())


def claim(encryptor: Encryptor | None = None, **parameters: object) -> Claim:
    id_, parts = new_id(), SecretDetector(LOGIN).part(parameters)
    shown, encrypted = json.dumps(parameters), None
    if parts is not None and encryptor is not None:
        shown = json.dumps(parts.shown)
        encrypted = encryptor.encrypt(parts.encrypted, execution_id=id_, tool="Login", shown=shown)
    return Claim(
        id=id_,
        attempt=1,
        token=new_id(),
        tool="Login",
        tool_version="1.0.0",
        parameters=shown,
        context="{}",
        timeout=1.0,
        max_attempts=1,
        idempotent=False,
        reply_to=None,
        encrypted=encrypted,
    )


def decrypted(
    settings: Settings, hosted: Mapping[str, ToolSpec], secrets: Mapping[str, str], claims: list[Claim]
) -> tuple[list[Claim], list[Outcome]]:
    """What may run, and the ends of the rest."""
    ends = Ends()
    return Decryption(settings, hosted, secrets).claimed(claims, ends), ends.ended


class Ends:
    """Keeps what a middleware does not let through."""

    def __init__(self) -> None:
        self.ended: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.ended.append(outcome)

    def forget(self, claim: Claim) -> None:
        raise AssertionError("nothing is forgotten here")


def test_an_encrypted_call_gets_its_parameters_back_and_its_secrets_named(
    settings: Settings, encryptor: Encryptor
) -> None:
    one = claim(encryptor, url=f"u?k={SECRET}", pw=SECRET)
    assert SECRET not in repr(one)

    [opened], refused = decrypted(settings, {LOGIN.name: LOGIN}, {}, [one])

    assert json.loads(opened.parameters) == {"url": f"u?k={SECRET}", "pw": SECRET}
    assert (opened.encrypted, opened.secrets, refused) == (None, (SECRET,), [])


def test_metadata_that_was_encrypted_is_put_back_into_the_context(settings: Settings, encryptor: Encryptor) -> None:
    metadata = {"api_key": SECRET, "note": f"as {SECRET}"}
    parts = SecretDetector(LOGIN).part({"url": "u"}, metadata)
    assert parts is not None
    plain = claim(url="u")
    encrypted = encryptor.encrypt(parts.encrypted, execution_id=plain.id, tool="Login", shown=plain.parameters)
    one = replace(plain, context=json.dumps({"dry_run": True, "metadata": parts.shown_metadata}), encrypted=encrypted)

    [opened], refused = decrypted(settings, {}, {}, [one])

    assert (json.loads(opened.context), refused) == ({"dry_run": True, "metadata": metadata}, [])
    assert (json.loads(opened.parameters), opened.secrets) == ({"url": "u"}, (SECRET,))
    assert SECRET not in one.context


def test_calls_that_hide_nothing_pass_as_they_are(settings: Settings) -> None:
    hosted, claims = {LOGIN.name: LOGIN}, [claim(url="u"), claim(url="v")]
    assert decrypted(settings, hosted, {}, claims) == (claims, [])
    assert decrypted(settings, hosted, {}, claims)[0] is claims

    quoting = [claim(url="secret://X")]
    assert decrypted(settings, hosted, {}, quoting) == (quoting, [])


def test_a_reference_is_resolved_in_a_sensitive_parameter_and_nowhere_else(settings: Settings) -> None:
    one = claim(url="secret://DB", pw="secret://DB")

    [opened], _ = decrypted(settings, {LOGIN.name: LOGIN}, {"DB": SECRET}, [one])

    assert json.loads(opened.parameters) == {"url": "secret://DB", "pw": SECRET}
    assert opened.secrets == (SECRET,)


def test_a_reference_under_the_name_of_a_secret_is_resolved_inside_an_object_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    one = claim(env={"API_TOKEN": "secret://DB", "NOTE": "secret://DB", "deep": [{"password": "secret://DB"}]})
    assert decrypted(Settings.load(home=tmp_path), {LOGIN.name: LOGIN}, {"DB": SECRET}, [one]) == ([one], [])

    [opened], _ = decrypted(
        Settings.load(home=tmp_path, references_in=("Login",)), {LOGIN.name: LOGIN}, {"DB": SECRET}, [one]
    )

    assert json.loads(opened.parameters)["env"] == {
        "API_TOKEN": SECRET,
        "NOTE": "secret://DB",
        "deep": [{"password": SECRET}],
    }
    assert opened.secrets == (SECRET,)


def test_a_reference_that_was_encrypted_with_other_values_is_resolved_too(
    settings: Settings, encryptor: Encryptor
) -> None:
    one = claim(encryptor, pw={"user": "somebody", "key": "secret://DB"})

    [opened], _ = decrypted(settings, {LOGIN.name: LOGIN}, {"DB": SECRET}, [one])

    assert json.loads(opened.parameters) == {"pw": {"user": "somebody", "key": SECRET}}
    assert SECRET in opened.secrets


def test_without_the_key_a_call_ends_and_its_neighbours_run(
    settings: Settings, encryptor: Encryptor, tmp_path: Path
) -> None:
    strange = Encryptor(KeyFolder(tmp_path / "elsewhere").new())
    good, bad, unknown = claim(encryptor, pw=SECRET), claim(strange, pw=SECRET), claim(pw="secret://NOPE")

    opened, refused = decrypted(settings, {LOGIN.name: LOGIN}, {}, [bad, good, unknown])

    assert [one.id for one in opened] == [good.id]
    assert [(one.id, one.status, one.error_code) for one in refused] == [
        (bad.id, ExecutionStatus.FAILED, ErrorCode.ENCRYPTION_FAILED),
        (unknown.id, ExecutionStatus.FAILED, ErrorCode.SECRET_NOT_FOUND),
    ]
    assert strange.id in (refused[0].error or "")
    assert json.loads(refused[0].metadata) == {"retryable": True}


def test_what_was_encrypted_for_another_row_opens_in_none(settings: Settings, encryptor: Encryptor) -> None:
    mine, theirs = claim(encryptor, url="mine", pw=SECRET), claim(encryptor, url="theirs", pw="other-secret")
    swapped = Claim(**{name: getattr(mine, name) for name in Claim.__slots__} | {"encrypted": theirs.encrypted})

    opened, [refused] = decrypted(settings, {LOGIN.name: LOGIN}, {}, [swapped])

    assert opened == []
    assert "do not belong to this call" in (refused.error or "")
    assert json.loads(refused.metadata) == {"retryable": False}


@pytest.mark.parametrize(
    "encrypted",
    [
        [],
        "x",
        {"hidden": 7},
        {"hidden": [1]},
        {"quoting": "x"},
        {"found": 7, "hidden": {"pw": SECRET}},
        {"found": [7, {}]},
    ],
)
def test_whatever_a_stranger_encrypted_ends_no_call_but_his_own(
    settings: Settings, encryptor: Encryptor, encrypted: Any
) -> None:
    good, strange = claim(encryptor, pw=SECRET), claim(pw="[redacted]")
    bound = {"execution_id": strange.id, "tool": "Login", "shown": strange.parameters}
    strange = replace(strange, encrypted=encryptor.encrypt(encrypted, **bound))

    opened, refused = decrypted(settings, {LOGIN.name: LOGIN}, {}, [strange, good])

    assert good.id in {one.id for one in opened}
    assert all(isinstance(secret, str) for one in opened for secret in one.secrets)
    assert {(one.id, one.error_code) for one in refused} <= {(strange.id, ErrorCode.ENCRYPTION_FAILED)}
    assert len(opened) + len(refused) == 2


@pytest.mark.parametrize(
    "parameters",
    ['["secret://DB"]', '[2, "secret://DB"]', '"secret://DB"', "{secret://", '{"secret://": ' + "[" * 100_000],
)
def test_parameters_that_are_none_end_their_own_call(settings: Settings, parameters: str) -> None:
    good, strange = claim(pw="secret://DB"), replace(claim(), parameters=parameters)

    opened, refused = decrypted(settings, {LOGIN.name: LOGIN}, {"DB": SECRET}, [strange, good])

    assert [one.id for one in opened] == [good.id]
    assert [(one.id, one.error_code) for one in refused] == [(strange.id, ErrorCode.ENCRYPTION_FAILED)]


def test_a_reference_under_a_name_that_only_says_that_it_is_a_secret_is_resolved(settings: Settings) -> None:
    open_to_all = ToolSpec(name="Login", description="Log in.", category=ToolCategory.OTHER, extra=True)

    [opened], _ = decrypted(
        settings, {open_to_all.name: open_to_all}, {"DB": SECRET}, [claim(password="secret://DB", url="secret://DB")]
    )

    assert json.loads(opened.parameters) == {"password": SECRET, "url": "secret://DB"}
