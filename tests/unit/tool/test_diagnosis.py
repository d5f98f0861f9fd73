"""Why a body failed: what its author needs to see, bounded, without secrets, and never shown to a model."""

import asyncio
import importlib.util
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import Diagnosis
from forge_tools.schema import encode_json
from forge_tools.tool import FunctionTool, tool
from forge_tools.tool.base import ExecutionContext, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.failures import MOST_BYTES, diagnosis_of
from forge_tools.tool.registry import ScopedRegistry

HERE = __file__


def look_up() -> Any:
    return {}["missing"]  # the line


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(Path(HERE).read_text().splitlines(), 1) if text in line)


def chained() -> None:
    try:
        look_up()
    except KeyError as error:
        found = RuntimeError("cannot go on")
        found.add_note("while the third was made")
        raise found from error


def grouped() -> None:
    raise ExceptionGroup("several", [ValueError("first"), TypeError("second")])


def recursive(depth: int = 0) -> None:
    recursive(depth + 1)


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Interruption(BaseException):
    """Passes every `except Exception`."""


def raised_by(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


async def result_of(function: FunctionTool, context: ExecutionContext, **parameters: Any) -> ToolResult:
    registry = ScopedRegistry()
    registry.register(function)
    return await ToolExecutor(registry).call(function.name, parameters, context)


@pytest.mark.parametrize("lane", ["process", "async"])
async def test_the_authors_line_is_known_and_frames_of_ours_are_not_shown(context: ExecutionContext, lane: str) -> None:
    def fail() -> str:
        """Fail."""
        return str(look_up())

    async def fail_awaiting() -> str:
        """Fail."""
        await asyncio.sleep(0)
        return str(look_up())

    body = fail if lane == "process" else fail_awaiting
    result = await result_of(tool(name="fail")(body), context)

    assert result.error == "Unexpected error: KeyError: 'missing'"
    found = result.diagnosis
    assert found is not None
    assert (found.type, found.message) == ("KeyError", "'missing'")
    assert [frame.function.rpartition(".")[2] for frame in found.frames] == [body.__name__, "look_up"]
    assert found.place == f"{HERE}:{line_of('# the line')} in look_up"
    assert found.frames[-1].code == 'return {}["missing"]  # the line'
    assert found.summary == f"KeyError: 'missing' ({found.place})"


def test_what_a_model_reads_has_no_diagnosis() -> None:
    result = ToolResult.fail("no")
    result.diagnosis = diagnosis_of(raised_by(look_up), None)

    told = [
        result.to_text(),
        repr(result),
        json.dumps(result.to_dict()),
        json.dumps(result.to_dict("nested")),
        result.model_dump_json(),
    ]
    assert not any("look_up" in text or "diagnosis" in text for text in told)
    assert result.model_copy().diagnosis is result.diagnosis


def test_causes_notes_and_members_of_groups_are_told_in_order() -> None:
    found = diagnosis_of(raised_by(chained), None)

    assert found.notes == ("while the third was made",)
    assert [(cause.how, cause.said) for cause in found.causes] == [("cause", "KeyError: 'missing'")]
    text = str(found)
    assert text.index("RuntimeError: cannot go on") < text.index("caused by:") < text.index("KeyError: 'missing'")
    group = diagnosis_of(raised_by(grouped), None)
    assert [(one.how, one.said) for one in group.causes] == [
        ("member", "ValueError: first"),
        ("member", "TypeError: second"),
    ]


def test_where_only_a_library_was_running_its_caller_is_the_place() -> None:
    found = diagnosis_of(raised_by(lambda: json.loads("{")), None)

    assert found.type == "json.decoder.JSONDecodeError"
    assert found.frames[-1].own is False
    assert found.place.startswith(f"{HERE}:")


def test_a_recursion_of_ten_thousand_frames_is_told_once_and_counted() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_500)
    try:
        found = diagnosis_of(raised_by(recursive), None)
    finally:
        sys.setrecursionlimit(before)

    assert found.type == "RecursionError"
    assert max(frame.repeated for frame in found.frames) > 10_000
    assert len(encode_json(found.as_dict(), "diagnosis", MOST_BYTES)) < 4_000


def test_hundreds_of_frames_huge_messages_and_long_chains_stay_within_the_bound(tmp_path: Path) -> None:
    lines = [f"def f{number}():\n    f{number + 1}()\n" for number in range(300)]
    source = tmp_path / ("x" * 100) / "deep.py"
    source.parent.mkdir()
    source.write_text(
        "".join(lines) + 'def f300():\n    raise ValueError("\\U0001F600" * 10_000_000 + "\\x00\\udcff")\n'
    )
    spec = importlib.util.spec_from_file_location("deep", source)
    assert spec is not None
    assert spec.loader is not None
    deep = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(deep)
    error: BaseException = raised_by(deep.f0)
    for _ in range(200):
        error.add_note("n" * 5_000)
        wrapped = RuntimeError("é" * 20_000)
        wrapped.__cause__ = error.with_traceback(error.__traceback__)
        error = wrapped.with_traceback(error.__traceback__)

    found = diagnosis_of(error, None)

    assert len(encode_json(found.as_dict(), "diagnosis", MOST_BYTES)) <= MOST_BYTES
    assert found.left_out > 200
    assert Diagnosis.read(json.loads(json.dumps(found.as_dict()))) == found


def test_exceptions_that_cannot_be_printed_and_files_that_are_none_do_no_harm() -> None:
    assert diagnosis_of(raised_by(lambda: (_ for _ in ()).throw(MuteError())), None).said.endswith("MuteError")
    code = compile("1/0", "/dev/zero", "exec")
    assert diagnosis_of(raised_by(lambda: exec(code)), None).frames[-1].code == ""
    assert [Diagnosis.read(one) for one in (None, {}, [], {"type": 1}, "x")] == [None] * 5


@pytest.mark.parametrize("where", ["__str__", "__notes__", "__traceback__", "__cause__", "__class__", "__module__"])
@pytest.mark.parametrize("raised", [ValueError, SystemExit, Interruption])
async def test_whatever_the_code_of_an_exception_raises_the_call_fails_and_tells_its_type(
    where: str, raised: type[BaseException], context: ExecutionContext
) -> None:
    def refuse(*_: object) -> None:
        raise raised("no")

    async def fail() -> None:
        """Fail."""
        methods = {"__str__": refuse} if where in ("__str__", "__notes__", "__module__") else {where: property(refuse)}
        error = type("Mute", (Exception,), methods if where == "__str__" else {where: methods.get(where, "")})()
        mute = type("Mute", (), {"__str__": refuse})()
        if where == "__notes__":
            error.__notes__ = [mute]
        elif where == "__module__":
            type(error).__module__ = mute
        raise error

    result = await result_of(tool(name="fail")(fail), context)

    assert (result.success, result.error_code) == (False, "EXECUTION_ERROR")
    assert "Mute" in str(result.error)
    assert result.diagnosis is not None


async def test_a_secret_is_neither_in_messages_nor_in_notes_nor_in_lines_of_code(context: ExecutionContext) -> None:
    async def sign_in(token: str) -> str:
        """Sign in."""
        try:
            if token == "hunter22-secret":
                raise ValueError(f"401 for {token}")
        except ValueError as error:
            error.add_note(f"with {token}")
            raise RuntimeError(f"{token} is wrong") from error
        return token

    result = await result_of(tool(name="sign_in", sensitive=["token"])(sign_in), context, token="hunter22-secret")

    assert result.diagnosis is not None
    assert "hunter22" not in json.dumps(result.diagnosis.as_dict())
    assert "[redacted]" in str(result.diagnosis)


@pytest.mark.parametrize("lane", ["process", "async"])
async def test_what_a_timeout_met_is_told(context: ExecutionContext, lane: str) -> None:
    is_over = threading.Event()

    def block() -> None:
        """Wait."""
        is_over.wait(60)  # where a thread is

    async def wait() -> None:
        """Wait."""
        await asyncio.sleep(60)  # where a task is

    body, place = (block, "# where a thread is") if lane == "process" else (wait, "# where a task is")
    result = await result_of(tool(name="wait")(body), context.model_copy(update={"timeout": 0.2}))
    is_over.set()

    assert result.error_code == "TIMEOUT"
    assert result.diagnosis is not None
    assert result.diagnosis.place.startswith(f"{HERE}:{line_of(place)} in ")
