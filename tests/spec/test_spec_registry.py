"""Registries as the requirements state them."""

import inspect
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import get_type_hints

import pytest

from forge_tools.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.errors import ToolError
from forge_tools.executor import ToolExecutor
from forge_tools.mcp.hosted.servers import ServerTool
from forge_tools.registry import ScopedRegistry, ToolRegistry
from forge_tools.tool import ToolFactory, load_tools
from forge_tools.tool import registry as registry_module
from tests.spec.sample_tools import Bash, Echo, Read, Recorder, Write

spec = pytest.mark.spec


@spec("S0-40", "S3-087", "S3-091", "S3-096", "S3-100", "S4-38", "S4-42")
def test_a_registered_tool_exists() -> None:
    registry = ToolRegistry()
    registry.register(Read())

    assert registry.exists("Read")
    assert registry.count() == 1


@spec("S0-41", "S0-50", "S1-27", "S3-092", "S3-098", "S4-34", "S4-40")
def test_names_are_sorted_unless_asked_otherwise(registry: ScopedRegistry) -> None:
    registry.register_many([Read(), Write(), Bash()])

    assert registry.count() == 3
    assert registry.list_names() == registry.get_names() == ["Bash", "Read", "Write"]
    assert registry.list_names(sort=False) == ["Read", "Write", "Bash"]


@spec("S0-42", "S1-22", "S3-103", "S4-33")
def test_a_name_can_be_taken_once(registry: ScopedRegistry) -> None:
    registry.register(Read())

    with pytest.raises(ToolError, match="Tool already registered"):
        registry.register(Read())


@spec("S2-10")
def test_replacing_is_possible_and_warned_about(registry: ScopedRegistry, caplog: pytest.LogCaptureFixture) -> None:
    registry.register(Read())
    newer = Read()

    registry.register(newer, replace=True)

    assert registry.get("Read") is newer
    assert ("forge_tools.tools", logging.WARNING, "Replacing tool: Read") in caplog.record_tuples


@spec("S0-43", "S0-45", "S1-24", "S3-094", "S3-095", "S4-36", "S4-37", "S0-44", "S0-46")
def test_get_returns_the_instance_or_nothing_or_raises(registry: ScopedRegistry) -> None:
    tool = Read()
    registry.register(tool)

    assert registry.get("Read") is registry.get_or_raise("Read") is tool
    assert registry.get("Unknown") is None
    with pytest.raises(ToolError, match="Tool not found"):
        registry.get_or_raise("Unknown")


@spec("S0-47", "S0-48", "S0-72", "S1-23", "S1-57", "S3-093")
async def test_a_deregistered_tool_is_gone(registry: ScopedRegistry, context: ExecutionContext) -> None:
    registry.register(Read())

    assert [registry.deregister("Read"), registry.unregister("Read"), registry.exists("Read")] == [True, False, False]
    assert (await ToolExecutor(registry).execute("Read", context, file_path="a")).error == "Unknown tool: Read"


@spec("S0-49", "S1-26", "S3-097", "S4-39")
def test_the_list_of_tools_is_a_copy_in_the_order_of_registration(registry: ScopedRegistry) -> None:
    tools = [Read(), Bash(), Write()]
    registry.register_many(tools)

    registry.list_all().clear()

    assert registry.list_all() == registry.get_all() == tools


@spec("S0-51", "S3-099", "S4-03", "S4-41")
def test_tools_of_the_process_are_found_by_name_and_by_category() -> None:
    ToolRegistry().register_many([Read(), write := Write(), Bash()])

    assert ToolRegistry().get("Write") is write
    assert [tool.name for tool in ToolRegistry().list_by_category(ToolCategory.FILE)] == ["Read", "Write"]


@spec("S0-52", "S3-101", "S4-43")
def test_clear_removes_everything(registry: ScopedRegistry) -> None:
    registry.register_many([Read(), Write()])

    registry.clear()

    assert (registry.count(), registry.list_all(), registry.exists("read_file")) == (0, [], False)


@spec("S0-53", "S3-088", "S3-089", "S3-090", "S3-196", "S4-32")
def test_there_is_one_registry_for_the_process_whoever_imports_it() -> None:
    assert ToolRegistry._instance is None  # noqa: SLF001  the specification names it
    assert ToolRegistry() is registry_module.ToolRegistry()
    assert ToolRegistry._instance is ToolRegistry()  # noqa: SLF001  the specification names it
    ToolRegistry().register(Read())
    assert [tool.name for tool in ToolRegistry().list_all()] == ["Read"]


@spec("S0-54", "S3-102", "S4-44")
def test_after_a_reset_the_registry_is_a_new_empty_one() -> None:
    before = ToolRegistry()
    before.register(Read())

    ToolRegistry.reset()

    assert ToolRegistry() is not before
    assert ToolRegistry().count() == 0


@spec("S1-25")
def test_has_is_another_word_for_exists(registry: ScopedRegistry) -> None:
    registry.register(Read())

    assert [registry.has("Read"), registry.has("Grep")] == [True, False]


class Living(Recorder):
    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__(name=name)
        self.log = log

    async def initialize(self, context: ExecutionContext) -> None:
        self.log.append(f"{self.name} up in {context.working_dir}")

    async def shutdown(self) -> None:
        self.log.append(f"{self.name} down")


@spec("S1-19", "S1-20", "S1-29", "S1-30")
async def test_tools_are_initialized_once_and_shut_down_in_order(registry: ScopedRegistry) -> None:
    log: list[str] = []
    registry.register_many([Living("b", log), Echo(), Living("a", log)])
    context = ExecutionContext(working_dir="/w")

    await registry.initialize_all(context)
    await registry.initialize_all(context)
    await registry.shutdown_all()

    assert log == ["b up in /w", "a up in /w", "b down", "a down"]


@spec("S0-69", "S3-126", "S3-127", "S4-33", "S4-35")
def test_ten_threads_may_register_and_deregister_at_once() -> None:
    start = threading.Barrier(10)

    def register(number: int) -> None:
        start.wait()
        ToolRegistry().register_many([Recorder(name=f"Tool{number}-{index}") for index in range(40)])
        assert all(ToolRegistry().deregister(f"Tool{number}-{index}") for index in range(20, 40))

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(register, range(10)))

    assert ToolRegistry().list_names() == sorted(f"Tool{n}-{i}" for n in range(10) for i in range(20))


@spec("S4-02")
def test_a_factory_creates_tools_with_their_configuration_and_what_they_depend_on() -> None:
    class Prefixed(Echo):
        def __init__(self, log: logging.Logger, prefix: str) -> None:
            self.log, self.prefix = log, prefix

    factory = ToolFactory().provide(logging.Logger, lambda: logging.Logger("given")).add(Prefixed, prefix="> ")

    (tool,) = factory()

    assert isinstance(tool, Prefixed)
    assert (tool.log.name, tool.prefix) == ("given", "> ")


@spec("S2-06", "S0-73")
def test_after_start_up_registry_executor_and_schemas_are_there() -> None:
    ToolRegistry().register_many(load_tools(["tests.spec.sample_tools:Echo"], entry_points=False))

    executor = ToolExecutor()

    assert {"Read", "Grep", "Bash", "Echo"} <= set(ToolRegistry().list_names())
    assert len(executor.get_all_schemas()) == ToolRegistry().count()


@spec("S3-182", "S3-183", "S3-187")
def test_tools_of_files_of_execution_and_of_mcp_are_made_of_the_same_parts() -> None:
    made = {tool.spec.name: tool for tool in load_tools([], entry_points=False)}

    for name, category in (("Read", ToolCategory.FILE), ("Bash", ToolCategory.EXECUTION)):
        assert (isinstance(made[name], BaseTool), made[name].category) == (True, category)
        assert {type(parameter) for parameter in made[name].parameters} == {ToolParameter}
    for kind in (type(made["Read"]), type(made["Bash"]), ServerTool):
        assert (issubclass(kind, BaseTool), get_type_hints(kind.execute)["return"]) == (True, ToolResult)


@spec("S3-184..186")
def test_later_phases_find_what_they_build_on(context: ExecutionContext) -> None:
    import forge_tools.base
    import forge_tools.executor
    import forge_tools.registry

    names = {"BaseTool", "ToolParameter", "ToolResult", "ExecutionContext", "ToolCategory", "ToolExecution"}

    assert names <= set(forge_tools.base.__all__)
    assert forge_tools.executor.ToolExecutor(forge_tools.registry.ToolRegistry()).get_executions() == []
    assert inspect.iscoroutinefunction(forge_tools.base.BaseTool.execute)
    assert callable(forge_tools.base.BaseTool.to_langchain_tool)
