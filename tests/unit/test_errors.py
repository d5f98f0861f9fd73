"""The tree of errors: stable codes, and errors that cross processes whole."""

import pickle
from collections.abc import Iterator

import pytest

from forge_tools import errors
from forge_tools.errors import (
    CallFailedError,
    DuplicateToolError,
    ErrorCode,
    ForgeError,
    InvalidToolError,
    ResultTimeoutError,
    SandboxError,
    SubmitOutcomeUnknownError,
    ToolError,
    ToolNotFoundError,
)
from forge_tools.storage import ToolChangedError


def family(root: type[ForgeError]) -> Iterator[type[ForgeError]]:
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from family(child)


@pytest.mark.parametrize("leaf", list(family(ForgeError)), ids=lambda leaf: leaf.__name__)
def test_every_error_has_a_code_of_its_family_and_is_drawn_in_the_tree(leaf: type[ForgeError]) -> None:
    assert leaf.code.isupper()
    assert isinstance(leaf.retryable, bool)
    assert leaf.__name__ in (errors.__doc__ or "")
    assert leaf.__doc__


def test_codes_are_words_that_programs_compare_as_text() -> None:
    assert ErrorCode.TIMEOUT == "TIMEOUT"
    assert all(code.value == code.name for code in ErrorCode)


@pytest.mark.parametrize("kind", [ToolError, DuplicateToolError, ToolNotFoundError, InvalidToolError])
def test_errors_about_a_tool_survive_another_process(kind: type[ToolError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("Read", "File not found")))

    assert type(copy) is kind
    assert (copy.tool_name, copy.message, str(copy)) == ("Read", "File not found", "Tool 'Read' error: File not found")


@pytest.mark.parametrize(
    "error",
    [
        SubmitOutcomeUnknownError("connection lost", "id-1"),
        CallFailedError("no such city", "NO_CITY", {"success": False}),
        ToolChangedError("Read", None, is_enabled=False),
        ResultTimeoutError("waited 5s"),
        SandboxError("outside", "PATH_OUTSIDE_WORKSPACE"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_another_process_with_all_that_they_carry(error: ForgeError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))


def test_a_waiter_may_catch_the_builtin_timeout() -> None:
    with pytest.raises(TimeoutError):
        raise ResultTimeoutError("waited 5s")


def test_an_unknown_outcome_carries_the_id_to_attach_to() -> None:
    assert SubmitOutcomeUnknownError("connection lost", "id-1").execution_id == "id-1"


def test_a_refusal_of_the_sandbox_may_say_its_kind() -> None:
    assert SandboxError("outside").code == "SANDBOX_ERROR"
    assert SandboxError("outside", "PATH_OUTSIDE_WORKSPACE").code == "PATH_OUTSIDE_WORKSPACE"
