"""Secrets in the metadata of a call's context: encrypted like parameters, and shown by no refusal."""

import json
from pathlib import Path

import pytest

from forge_tools.client.call import Awaited, Call
from forge_tools.client.catalogue import Snapshot
from forge_tools.client.intake import Intake
from forge_tools.config import Settings
from forge_tools.model import ToolCategory, ToolParameter, ToolResult, ToolSpec
from forge_tools.model.execution import NewExecution
from forge_tools.secrets.encryption import KeyFolder, Opener
from forge_tools.storage.directory import Directory, PublicKey
from tests.unit.client.test_intake import CONTEXT, GREET, rejected

PLAIN = ToolSpec(
    name="Plain",
    description="Say it.",
    category=ToolCategory.OTHER,
    parameters=(ToolParameter(name="who", type="string", description="Whom."),),
)


def encrypting(keys: KeyFolder, call: Call) -> NewExecution:
    public = keys.new()
    prepared = Intake(Settings.load(), "submitter").prepare(
        call, Snapshot(Directory([GREET, PLAIN], encryption_key=PublicKey("k", public)))
    )
    assert isinstance(prepared, NewExecution), prepared
    return prepared


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path)


def test_metadata_with_a_secret_is_encrypted_like_a_parameter(keys: KeyFolder) -> None:
    metadata = {"trace": "t-1", "auth": {"api_key": "hunter22"}, "note": "with hunter22"}
    context = CONTEXT.model_copy(update={"metadata": metadata})
    one = encrypting(keys, Call("Plain", {"who": "hunter22 says"}, context))

    assert "hunter22" not in repr(one)
    assert json.loads(one.parameters) == {"who": "[redacted] says"}
    assert json.loads(one.context)["metadata"] == {
        "trace": "t-1", "auth": {"api_key": "[redacted]"}, "note": "with [redacted]"
    }  # fmt: skip
    assert one.encrypted_names == ("who", "context.metadata")
    bound = {"execution_id": one.id, "tool": "Plain", "shown": one.parameters}
    assert Opener(keys).open(one.encrypted or "", **bound)["metadata"] == metadata


def test_metadata_that_quotes_a_secret_parameter_is_encrypted_and_other_metadata_is_not(keys: KeyFolder) -> None:
    quoting, plain = ({"note": text, "n": 1} for text in ("login hunter22", "login"))
    for metadata, names in ((quoting, ("key", "context.metadata")), (plain, ("key",))):
        call = Call("Greet", {"who": "Ada", "key": "hunter22"}, CONTEXT.model_copy(update={"metadata": metadata}))
        one = encrypting(keys, call)
        assert one.encrypted_names == names
        assert "hunter22" not in one.context


def test_a_refused_call_shows_no_secret_of_its_metadata() -> None:
    context = CONTEXT.model_copy(update={"metadata": {"password": "hunter22", "n": 1}})
    for call in (Call("Greet", {"who": 3}, context), Call("Gret", {}, context), Call("Plain", {"who": "Ada"}, context)):
        one = rejected(call)
        assert json.loads(one.new.context)["metadata"] == {"password": "[redacted]", "n": 1}
        assert "hunter22" not in repr((one.new, one.result))


def test_what_a_client_lists_of_its_calls_shows_no_secret_of_their_metadata() -> None:
    context = CONTEXT.model_copy(update={"metadata": {"password": "hunter22", "n": 1}})
    awaited = Awaited()
    awaited.add(Call("Plain", {"who": "hunter22 says"}, context), PLAIN, ToolResult.ok("done"), 0.0)
    awaited.add(Call("Gret", {"who": "hunter22"}, context), None, ToolResult.fail("Unknown tool: Gret"), 0.0)

    listed = awaited.list()

    assert [one.context.metadata for one in listed] == [{"password": "[redacted]", "n": 1}] * 2
    assert [one.parameters for one in listed] == [{"who": "[redacted] says"}, {"who": "[redacted]"}]
