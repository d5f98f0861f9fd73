"""The executor as the requirements state it."""

import asyncio
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from forge_tools.base import Capabilities, ExecutionContext, ToolCategory, ToolExecution, ToolResult
from forge_tools.errors import ToolError
from forge_tools.executor import CallOptions, ToolExecutor
from forge_tools.model import RetryPolicy
from forge_tools.registry import ScopedRegistry, ToolRegistry
from forge_tools.tool import executor as executor_module
from tests.spec.sample_tools import Bash, Broken, Echo, Read, Recorder, Slow, Write, parameter

spec = pytest.mark.spec
LOGGER = "forge_tools.tools"


@pytest.fixture
def executor(registry: ScopedRegistry) -> ToolExecutor:
    registry.register_many([Read(), Write(), Bash(), Echo(), Broken()])
    return ToolExecutor(registry)


@spec("S0-55", "S2-02", "S3-104..106", "S4-01")
async def test_a_tool_is_called_by_name(executor: ToolExecutor, context: ExecutionContext) -> None:
    result = await executor.execute("Echo", context, message="Hello")

    assert (result.success, result.output) == (True, "Hello")


@spec("S3-110")
async def test_the_executor_has_the_tool_execute_itself(registry: ScopedRegistry, context: ExecutionContext) -> None:
    class Own(Echo):
        async def execute(self, context: ExecutionContext, /, **kwargs: str) -> ToolResult:
            return ToolResult.ok(f"my own way with {kwargs}")

    registry.register(Own())

    assert (
        await ToolExecutor(registry).execute("Echo", context, message="x")
    ).output == "my own way with {'message': 'x'}"


@spec("S0-56", "S1-36", "S2-04", "S3-107", "S4-46")
async def test_an_unknown_tool_is_a_failure_with_a_warning(
    executor: ToolExecutor, context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    result = await executor.execute("Unknown", context)

    assert (result.success, result.error) == (False, "Unknown tool: Unknown")
    assert result.error_code == "TOOL_NOT_FOUND"
    assert (LOGGER, logging.WARNING, "Unknown tool: Unknown") in caplog.record_tuples
    assert executor.get_executions() == []


@spec("S0-57", "S3-116", "S3-117", "S4-52", "S2-07")
def test_all_schemas_for_openai(executor: ToolExecutor) -> None:
    schemas = executor.get_all_schemas("openai")

    assert [schema["type"] for schema in schemas] == ["function"] * 5
    assert schemas == executor.get_all_schemas()


@spec("S0-58", "S3-118")
def test_all_schemas_for_anthropic(executor: ToolExecutor) -> None:
    assert [s["input_schema"]["type"] for s in executor.get_all_schemas("anthropic")] == ["object"] * 5


@spec("S0-59", "S3-120", "S4-54")
def test_schemas_of_one_category(executor: ToolExecutor) -> None:
    schemas = executor.get_schemas_by_category(ToolCategory.FILE, "openai")

    assert [schema["function"]["name"] for schema in schemas] == ["Read", "Write"]


@spec("S3-119", "S4-53")
def test_an_unknown_format_is_refused_even_without_tools() -> None:
    executor = ToolExecutor(ScopedRegistry())

    with pytest.raises(ValueError, match=r"^Unknown schema format: xml\b"):
        executor.get_all_schemas("xml")
    with pytest.raises(ValueError, match=r"^Unknown schema format: xml\b"):
        executor.get_schemas_by_category(ToolCategory.FILE, "xml")


@spec("S0-60", "S3-113", "S3-114", "S3-197", "S4-49", "S4-55", "S3-186")
async def test_calls_are_recorded_in_order_failures_included(executor: ToolExecutor, context: ExecutionContext) -> None:
    await executor.execute("Read", context, file_path="/foo")
    await executor.execute("Write", context, file_path="/bar")
    executor.get_executions().clear()

    records = executor.get_executions()

    assert all(isinstance(record, ToolExecution) for record in records)
    assert [(r.tool_name, r.parameters, r.result.success) for r in records] == [
        ("Read", {"file_path": "/foo"}, True),
        ("Write", {"file_path": "/bar"}, False),
    ]


@spec("S0-61", "S3-115", "S4-56")
async def test_the_record_can_be_cleared(executor: ToolExecutor, context: ExecutionContext) -> None:
    await executor.execute("Echo", context, message="x")

    executor.clear_executions()

    assert executor.get_executions() == []


@spec("S0-62")
async def test_a_record_says_when_and_how_long(executor: ToolExecutor, context: ExecutionContext) -> None:
    before = datetime.now(UTC)
    await executor.execute("Echo", context, message="x")

    (record,) = executor.get_executions()

    assert record.started_at <= record.completed_at
    assert abs((record.completed_at - before).total_seconds()) < 10
    assert record.duration_ms == record.result.duration_ms


@spec("S0-63", "S0-65", "S3-108", "S3-111", "S4-47", "S4-48", "S4-50", "S2-03")
async def test_start_and_success_are_logged_for_information(
    executor: ToolExecutor, context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)

    await executor.execute("Read", context, file_path="/a")

    assert [level for _, level, _ in caplog.record_tuples] == [logging.INFO] * 2
    started, ended = caplog.messages
    assert started == "Executing tool: Read"
    assert ended.startswith("Tool Read succeeded (")
    assert ended.endswith("ms)")


@spec("S0-64", "S3-109", "S4-48", "S2-03")
async def test_parameters_and_result_are_logged_for_debugging(
    executor: ToolExecutor, context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)

    await executor.execute("Read", context, file_path="/home/user/test.txt")

    debug = [message for _, level, message in caplog.record_tuples if level == logging.DEBUG]
    assert "Parameters of Read: {'file_path': '/home/user/test.txt'}" in debug
    assert "Result of Read: '/home/user/test.txt None None'" in debug


@spec("S0-66", "S2-05", "S3-112", "S4-51")
async def test_a_failure_is_a_warning_and_an_unexpected_one_also_an_error(
    executor: ToolExecutor, context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    result = await executor.execute("Broken", context)

    assert "Traceback" not in (result.error or "")
    assert (LOGGER, logging.WARNING, f"Tool Broken failed: {result.error}") in caplog.record_tuples
    assert (LOGGER, logging.ERROR, "Unexpected error in Broken") in caplog.record_tuples


@spec("S2-15")
async def test_a_slow_call_is_warned_about(
    registry: ScopedRegistry,
    context: ExecutionContext,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert executor_module.SLOW_MS == 1000
    monkeypatch.setattr(executor_module, "SLOW_MS", 20)
    registry.register(Slow())

    await ToolExecutor(registry).execute("Slow", context, seconds=0.021)

    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert re.fullmatch(r"Slow tool: Slow took \d+ms", warning.getMessage())


@spec("S0-70", "S3-128")
def test_ten_threads_may_execute_at_once(executor: ToolExecutor, context: ExecutionContext) -> None:
    async def calls(number: int) -> list[ToolResult]:
        return [await executor.execute("Echo", context, message=f"{number}-{i}") for i in range(50)]

    with ThreadPoolExecutor(10) as pool:
        outputs = [r.output for results in pool.map(lambda n: asyncio.run(calls(n)), range(10)) for r in results]

    assert outputs == [f"{n}-{i}" for n in range(10) for i in range(50)]
    assert len(executor.get_executions()) == executor.get_stats()["total_executions"] == 500


@spec("S0-71", "S3-147")
async def test_the_whole_life_of_a_tool(registry: ScopedRegistry, context: ExecutionContext) -> None:
    registry.register(Echo())
    executor = ToolExecutor(registry)

    schemas = [executor.get_all_schemas(name) for name in ("openai", "anthropic")]
    good = await executor.execute("Echo", context, message="hi")
    bad = await executor.execute("Echo", context, message=1)

    assert [len(s) for s in schemas] == [1, 1]
    assert (good.output, bad.error) == ("hi", "Invalid type for message: expected string")
    assert registry.deregister("Echo")
    assert (await executor.execute("Echo", context, message="hi")).error == "Unknown tool: Echo"


@spec("S3-125")
@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(3), asyncio.CancelledError(), TimeoutError()])
async def test_nothing_a_body_raises_escapes(error: BaseException, context: ExecutionContext) -> None:
    registry = ScopedRegistry()
    registry.register_many([Broken(error), Recorder(answer={"no": "ToolResult"})])

    assert not (await ToolExecutor(registry).execute("Broken", context)).success
    assert (await ToolExecutor(registry).execute("Recorder", context)).output == {"no": "ToolResult"}


@spec("S4-45")
async def test_the_process_registry_is_used_only_where_none_is_given(context: ExecutionContext) -> None:
    ToolRegistry().register(Echo())

    assert (await ToolExecutor().execute("Echo", context, message="x")).success
    assert not (await ToolExecutor(ScopedRegistry()).execute("Echo", context, message="x")).success


@spec("S1-17", "S1-31", "S1-32", "S2-11")
async def test_arguments_may_come_as_one_object_with_or_without_a_context(registry: ScopedRegistry) -> None:
    class Where(Recorder):
        async def _execute(self, context: ExecutionContext, **kwargs: str) -> str:
            return f"{kwargs['x']} in {context.working_dir}"

    registry.register(Where(parameter("x")))
    executor = ToolExecutor(registry, default_context=ExecutionContext(working_dir="/default"))

    assert (await executor.call("Recorder", {"x": "a"})).output == "a in /default"
    given = ExecutionContext(working_dir="/given")
    assert (await executor.execute_with_context("Recorder", {"x": "b"}, given)).output == "b in /given"


@spec("S1-33", "S1-38")
async def test_a_call_may_set_its_own_timeout(registry: ScopedRegistry, context: ExecutionContext) -> None:
    registry.register(Slow())

    result = await ToolExecutor(registry).call("Slow", {"seconds": 60}, context, CallOptions(timeout=0.02))

    assert (result.error, result.error_code) == ("Tool timed out after 0.02s", "TIMEOUT")


@spec("S1-34")
async def test_validation_may_be_skipped_in_process(registry: ScopedRegistry, context: ExecutionContext) -> None:
    tool = Recorder(parameter("x"))
    registry.register(tool)

    result = await ToolExecutor(registry).call("Recorder", {"x": 5}, context, CallOptions(skip_validation=True))

    assert result.success
    assert tool.calls == [{"x": 5}]


@spec("S1-35")
@pytest.mark.parametrize(("idempotent", "calls"), [(True, 3), (False, 1)])
async def test_only_tools_that_may_be_repeated_are(
    idempotent: bool, calls: int, registry: ScopedRegistry, context: ExecutionContext
) -> None:
    answers = [ConnectionError("a"), ConnectionError("b"), ToolResult.ok("third")]
    tool = Recorder(answer=answers, capabilities=Capabilities(idempotent=idempotent))
    registry.register(tool)
    options = CallOptions(retry=RetryPolicy(max_attempts=5, delay_seconds=0.001, backoff=2))

    result = await ToolExecutor(registry).call("Recorder", {}, context, options)

    assert (len(tool.calls), result.success) == (calls, idempotent)


@spec("S1-40", "S1-41", "S1-42")
def test_parameters_can_be_checked_without_a_call(executor: ToolExecutor) -> None:
    assert executor.validate("Unknown", {}) == (False, "Unknown tool: Unknown")
    assert executor.validate_all("Unknown", {}) == ["Unknown tool: Unknown"]
    assert executor.validate("Broken", {}) == (True, None)
    assert executor.validate("Echo", {}) == (False, "Missing required parameter: message")
    assert executor.validate_all("Echo", {"message": 1}) == ["Invalid type for message: expected string"]


@spec("S1-43", "S1-44", "S1-45", "S1-59")
async def test_statistics_count_every_call_of_a_known_tool(executor: ToolExecutor, context: ExecutionContext) -> None:
    empty = executor.get_stats()
    for tool, arguments in (("Echo", {"message": "x"}), ("Broken", {}), ("Echo", {}), ("Unknown", {})):
        await executor.execute(tool, context, **arguments)

    stats = executor.get_stats()

    assert (empty["total_executions"], empty["average_execution_time_ms"]) == (0, 0)
    assert stats.pop("average_execution_time_ms") > 0
    assert stats == {
        "total_executions": 3,
        "success_count": 1,
        "error_count": 2,
        "rejected_count": 2,
        "executions_by_tool": {"Echo": 2, "Broken": 1},
    }


@spec("S2-08", "S2-12", "S2-13")
async def test_a_tool_is_had_as_a_function_from_arguments_to_text(executor: ToolExecutor) -> None:
    assert await executor.function("Echo")({"message": "hi"}) == "hi"
    with pytest.raises(ToolError, match="the disk is on fire"):
        await executor.function("Broken")({})
    with pytest.raises(ToolError, match="not found"):
        executor.function("Unknown")


@spec("S4-11")
def test_a_context_takes_any_metadata_in_process_and_only_json_travels(context: ExecutionContext) -> None:
    from forge_tools.errors import InvalidCallError
    from forge_tools.schema import encode_json

    live = context.model_copy(update={"metadata": {"engine": object()}})

    with pytest.raises(InvalidCallError, match=r"^context\.metadata\.engine: an object of type object cannot"):
        encode_json(live.model_dump(), "context", 10_000)
