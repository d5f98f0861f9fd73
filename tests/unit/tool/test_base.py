"""BaseTool at its edges: declarations, cancellation, time, redaction, shared results."""

import asyncio
import logging
from typing import Any

import pytest

from forge_tools.errors import InvalidToolError, ResultTimeoutError, SandboxError
from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolResult
from tests.spec.sample_tools import Broken, Echo, Read, Recorder, Slow, parameter

SECRET = parameter("key", sensitive=True, aliases=("api_key",))


# Declarations


def test_a_docstring_s_first_line_stands_in_for_the_description() -> None:
    class Documented(Echo):
        description = Recorder.description

    class Listing(BaseTool):
        """List the entries of a folder.

        More about it.
        """

        name = "Listing"
        category = ToolCategory.FILE
        parameters = ()

        async def _execute(self, context: ExecutionContext) -> ToolResult:
            return ToolResult.ok(None)

    class Longer(Listing):
        """List them at length."""

    class Fixed(Listing):
        description = "Said so"

    class Heir(Fixed):
        """A docstring does not overrule what was said."""

    descriptions = [tool().description for tool in (Listing, Longer, Fixed, Heir, Documented)]

    assert descriptions == [
        "List the entries of a folder.",
        "List them at length.",
        "Said so",
        "Said so",
        "Remember what it was called with.",
    ]


def test_without_description_and_docstring_a_tool_stays_abstract() -> None:
    class Silent(BaseTool):
        name = "Silent"
        category = ToolCategory.OTHER
        parameters = ()

        async def _execute(self, context: ExecutionContext) -> ToolResult:
            return ToolResult.ok(None)

    with pytest.raises(TypeError, match="description"):
        Silent()


def test_the_spec_is_built_once_and_knows_whether_extras_are_taken() -> None:
    echo = Echo()

    assert echo.spec is echo.spec
    assert (echo.spec.extra, Recorder().spec.extra) == (False, True)
    assert Read().spec.aliases == ("read_file",)


@pytest.mark.parametrize(
    ("declared", "where"),
    [({"category": "nonsense"}, "category"), ({"timeout": "soon"}, "timeout"), ({"lane": "fast"}, "lane")],
)
async def test_a_wrong_declaration_is_named(declared: dict[str, Any], where: str, context: ExecutionContext) -> None:
    tool = Recorder(**declared)

    with pytest.raises(InvalidToolError, match=where) as caught:
        _ = tool.spec

    assert (await tool.execute(context)).error == str(caught.value)


async def test_a_schema_that_cannot_be_checked_fails_the_call_and_does_not_raise(context: ExecutionContext) -> None:
    result = await Recorder(parameter("x", "array", items={"pattern": "("})).execute(context, x=[])

    assert (result.success, result.error_code) == (False, "INVALID_TOOL")


async def test_a_check_of_a_subclass_that_raises_is_a_failed_result(context: ExecutionContext) -> None:
    class Picky(Recorder):
        def validate_params(self, /, **kwargs: Any) -> tuple[bool, str | None]:
            raise RuntimeError(f"cannot judge {kwargs['key']}")

    result = await Picky(SECRET).execute(context, key="hunter2")

    assert result.error == "Unexpected error: cannot judge [redacted]"


async def test_a_refusal_of_a_subclass_without_words_still_has_some(context: ExecutionContext) -> None:
    class Mute(Recorder):
        def validate_params(self, /, **kwargs: Any) -> tuple[bool, str | None]:
            return False, None

    result = await Mute().execute(context)

    assert (result.error, result.metadata["errors"]) == ("Invalid parameters", ["Invalid parameters"])


# Calls


async def test_parameters_may_have_the_names_of_our_own_arguments(context: ExecutionContext) -> None:
    names = ("context", "self", "tool_name", "output", "error", "kwargs")
    tool = Recorder(*(parameter(name) for name in names))
    given = dict.fromkeys(names, "x")

    result = await tool.execute(context, **given)

    assert result.success
    assert tool.calls == [given]


async def test_aliases_reach_the_body_under_their_own_name(context: ExecutionContext) -> None:
    assert (await Read().execute(context, path="a", offset=None)).output == "a None None"


async def test_extra_arguments_reach_only_a_body_that_takes_them(context: ExecutionContext) -> None:
    open_tool = Recorder()

    assert (await open_tool.execute(context, anything=[1])).success
    assert open_tool.calls == [{"anything": [1]}]
    assert (await Echo().execute(context, message="x", extra=1)).error == "Unknown parameter 'extra'"


async def test_a_body_may_hand_out_one_result_object_again_and_again(context: ExecutionContext) -> None:
    same = ToolResult.ok("x")
    tool = Recorder(answer=same)

    first, second = [await tool.execute(context) for _ in range(2)]

    assert first is not second
    assert first.duration_ms is not None
    assert second.duration_ms is not None


@pytest.mark.parametrize("value", [None, "text", {"a": 1}, 0])
async def test_what_is_not_a_result_is_the_output(value: Any, context: ExecutionContext) -> None:
    result = await Recorder(answer=value).execute(context)

    assert (result.success, result.output) == (True, value)


async def test_unchecked_calls_fill_in_defaults_without_validating(context: ExecutionContext) -> None:
    tool = Recorder(parameter("a"), parameter("b", required=False, default="d"))

    await tool.execute_unchecked(context, a=1)

    assert tool.calls == [{"a": 1, "b": "d"}]


# Errors


def wrapped(cause: Exception) -> Exception:
    """As HTTP libraries do it."""
    error = RuntimeError("all attempts failed")
    error.__cause__ = OSError("connect")
    error.__cause__.__context__ = cause
    return error


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("raised", "error", "code"),
    [
        (ValueError("bad"), "Unexpected error: ValueError: bad", "EXECUTION_ERROR"),
        (ValueError(), "Unexpected error: ValueError", "EXECUTION_ERROR"),
        (UnprintableError(), "Unexpected error: UnprintableError", "EXECUTION_ERROR"),
        (ValueError("a\x00\ud800b"), r"Unexpected error: ValueError: a\x00\ud800b", "EXECUTION_ERROR"),
        (ValueError("x" * 9000), f"Unexpected error: ValueError: {'x' * 4000}...", "EXECUTION_ERROR"),
        (SystemExit(3), "Unexpected error: SystemExit: 3", "EXECUTION_ERROR"),
        (SystemExit("no such file"), "Unexpected error: no such file", "EXECUTION_ERROR"),
        (KeyError("a"), "Unexpected error: KeyError: 'a'", "EXECUTION_ERROR"),
        (KeyError("a key"), "Unexpected error: KeyError: 'a key'", "EXECUTION_ERROR"),
        (
            ExceptionGroup("eg", [ValueError("a"), OSError("b")]),
            "Unexpected error: ExceptionGroup: eg (2 sub-exceptions), the first: ValueError: a",
            "EXECUTION_ERROR",
        ),
        (TimeoutError("database"), "Unexpected error: TimeoutError: database", "EXECUTION_ERROR"),
        (ResultTimeoutError("waited 5s"), "waited 5s", "RESULT_TIMEOUT"),
        (SandboxError("outside", "PATH_OUTSIDE"), "outside", "PATH_OUTSIDE"),
        (BrokenPipeError("gone"), "Service unavailable: BrokenPipeError: gone", "SERVICE_UNAVAILABLE"),
        (wrapped(BrokenPipeError("gone")), "Service unavailable: all attempts failed", "SERVICE_UNAVAILABLE"),
    ],
)
async def test_what_a_body_raises_is_told_in_one_sentence(
    raised: BaseException, error: str, code: str, context: ExecutionContext
) -> None:
    result = await Broken(raised).execute(context)

    assert (result.success, result.error, result.error_code) == (False, error, code)
    assert result.error_details == {"type": type(raised).__name__}


async def test_an_interrupt_is_not_swallowed(context: ExecutionContext) -> None:
    with pytest.raises(KeyboardInterrupt):
        await Broken(KeyboardInterrupt()).execute(context)


async def test_a_failure_without_words_says_so(context: ExecutionContext) -> None:
    result = await Recorder(answer=ToolResult(success=False)).execute(context)

    assert result.error == "failed without a reason"


# Time and cancellation


async def test_a_body_that_swallows_the_deadline_has_timed_out_all_the_same(context: ExecutionContext) -> None:
    class Stubborn(Recorder):
        def __init__(self, ending: Exception | None) -> None:
            super().__init__()
            self.ending = ending

        async def _execute(self, context: ExecutionContext, **kwargs: Any) -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if self.ending:
                    raise self.ending from None
            return "late"

    hasty = context.model_copy(update={"timeout": 0.01})

    results = [await Stubborn(ending).execute(hasty) for ending in (None, RuntimeError("x"))]

    assert [(r.success, r.error_code) for r in results] == [(False, "TIMEOUT")] * 2


async def test_the_callers_timeout_counts_before_the_tools_before_the_default() -> None:
    tool = Slow()
    tool.timeout = 0.01

    by_tool = await tool.execute(ExecutionContext(working_dir="."), seconds=60)
    by_caller = await tool.execute(ExecutionContext(working_dir=".", timeout=0.02), seconds=60)

    assert [by_tool.error, by_caller.error] == ["Tool timed out after 0.01s", "Tool timed out after 0.02s"]


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
async def test_an_invalid_timeout_is_refused(seconds: float, context: ExecutionContext) -> None:
    tool = Recorder()

    result = await tool.execute(context.model_copy(update={"timeout": seconds}))

    assert result.error == f"Invalid timeout: {seconds:g}s. Give a number of seconds above 0."
    assert tool.calls == []


async def test_a_caller_s_own_deadline_is_not_taken_for_the_tools(context: ExecutionContext) -> None:
    tool = Slow()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tool.execute(context, seconds=60)

    assert tool.was_cancelled


async def test_an_earlier_cancellation_that_was_swallowed_does_not_count(context: ExecutionContext) -> None:
    async def swallow_then_call() -> ToolResult:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return await Broken(asyncio.CancelledError()).execute(context)
        raise AssertionError

    task = asyncio.create_task(swallow_then_call())
    await asyncio.sleep(0)
    task.cancel()

    result = await task
    assert result.error == "Tool execution cancelled"
    assert "Nobody cancelled this call" in result.metadata["hint"]


# What nobody may see


async def test_sensitive_values_are_taken_out_of_failures(context: ExecutionContext) -> None:
    nested = parameter("login", "object", sensitive=True)
    text = 'login {"user": "ann\\nlee"} with s3cret-key, pin 4711, flag True'
    failure = ToolResult.fail(text, error_details={"seen": ["s3cret-key"]}, url="http://h/?k=s3cret-key", count=4711)
    tool = Recorder(SECRET, nested, answer=failure)

    result = await tool.execute(
        context, api_key="s3cret-key", login={"user": "ann\nlee", "pin": [4711], "on": True, "x": None, "ab": "ab"}
    )

    assert result.error == 'login {"user": "[redacted]"} with [redacted], pin [redacted], flag True'
    assert result.error_details == {"seen": ["[redacted]"]}
    assert result.metadata == {"url": "http://h/?k=[redacted]", "count": 4711}


async def test_the_log_of_an_exception_does_not_quote_a_sensitive_value(
    context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    tool = Recorder(SECRET, answer=ValueError("refused s3cret-key"))

    result = await tool.execute(context, key="s3cret-key")

    assert result.error == "Unexpected error: refused [redacted]"
    assert "s3cret-key" not in caplog.text
    assert "ValueError: refused [redacted]" in caplog.text
    assert "sample_tools.py" in caplog.text


async def test_no_part_of_a_secret_is_left_where_a_long_error_is_cut(
    context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "s3cret" * 1000
    tool = Recorder(SECRET, answer=ValueError("x" * 3000 + secret))

    result = await tool.execute(context, key=secret)

    assert "s3cret" not in str(result.error)
    assert "s3cret" not in caplog.text


async def test_a_dry_run_shows_no_secret_and_no_endless_text(context: ExecutionContext) -> None:
    tool = Recorder(SECRET, parameter("text"), parameter("more", "array", required=False))
    dry = context.model_copy(update={"dry_run": True})

    result = await tool.execute(dry, key="s3cret-key", text="y" * 10_000, more=["\x1b" * 500])

    assert "s3cret-key" not in result.output
    assert result.output.startswith("[Dry Run] Would execute Recorder with {'key': '[redacted]', 'text': 'yyy")
    assert len(result.output) < 600
    assert result.output.isprintable()


async def test_a_values_own_depth_cannot_break_the_redaction(context: ExecutionContext) -> None:
    deep: Any = "s3cret-key"
    for _ in range(5000):
        deep = [deep]
    tool = Recorder(parameter("key", "array", sensitive=True), answer=ValueError("no"))

    assert (await tool.execute(context, key=deep)).error == "Unexpected error: ValueError: no"


def test_a_tool_logs_under_its_own_name(caplog: pytest.LogCaptureFixture) -> None:
    Echo().logger.warning("hello")

    assert caplog.record_tuples == [("forge_tools.tools.Echo", logging.WARNING, "hello")]


async def test_the_hooks_do_nothing_unless_a_tool_needs_them(context: ExecutionContext) -> None:
    echo = Echo()

    await echo.initialize(context)
    await echo.shutdown()

    assert (await echo.execute(context, message="x")).success
