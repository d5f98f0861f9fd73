"""Registries at their edges: names that collide, definitions that are refused, hooks that fail."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from forge_tools.errors import DuplicateToolError, InvalidToolError, ToolError, ToolNotFoundError
from forge_tools.model.calls import RetryPolicy
from forge_tools.tool.base import ExecutionContext, ToolResult
from forge_tools.tool.registry import ScopedRegistry, ToolRegistry
from tests.spec.sample_tools import Bash, Echo, Read, Recorder, parameter
from tests.waiting import wait_until, within

# Names


TAKEN: list[tuple[str, tuple[str, ...]]] = [("read_file", ()), ("Other", ("Read",)), ("Other", ("read_file",))]


def test_a_tool_answers_to_its_aliases(registry: ScopedRegistry) -> None:
    tool = Read()
    registry.register(tool)

    assert registry.get("read_file") is registry.get_or_raise("read_file") is tool
    assert registry.exists("read_file")
    assert (registry.count(), registry.list_names()) == (1, ["Read"])
    assert registry.deregister("read_file")
    assert not registry.exists("Read")
    assert not registry.exists("read_file")


@pytest.mark.parametrize(
    ("name", "aliases", "replace"),
    [
        ("Read", (), False),
        *[(*taken, replace) for replace in (False, True) for taken in TAKEN],
    ],
)
def test_a_taken_name_or_alias_is_refused(
    name: str, aliases: tuple[str, ...], replace: bool, registry: ScopedRegistry
) -> None:
    tool = Read()
    registry.register(tool)

    with pytest.raises(DuplicateToolError, match=r"already registered, by tests\.spec\.sample_tools\.Read\."):
        registry.register(Recorder(name=name, aliases=aliases), replace=replace)

    assert registry.list_all() == [tool]


def test_replacing_drops_the_aliases_of_the_old_and_keeps_its_place(registry: ScopedRegistry) -> None:
    registry.register_many([Read(), Bash()])

    registry.register(Recorder(name="Read", aliases=("cat",)), replace=True)

    assert registry.list_names(sort=False) == ["Read", "Bash"]
    assert [registry.exists(name) for name in ("cat", "read_file")] == [True, False]


def test_many_are_registered_all_or_none(registry: ScopedRegistry) -> None:
    registry.register(Echo())

    for bad in (Read(), Recorder(name="bad name"), Recorder(name="X", aliases=("Echo",))):
        with pytest.raises(ToolError):
            registry.register_many([Read(), bad])

    assert registry.list_names() == ["Echo"]
    assert not registry.exists("read_file")


def test_an_unknown_name_gets_the_closest(registry: ScopedRegistry) -> None:
    registry.register(Read())

    with pytest.raises(ToolNotFoundError, match=r"Tool not found \(did you mean 'Read'\?\)"):
        registry.get_or_raise("Raed")


def test_a_tool_that_is_falsy_is_found_all_the_same(registry: ScopedRegistry) -> None:
    class Empty(Echo):
        def __len__(self) -> int:
            return 0

    registry.register(Empty())

    assert registry.exists("Echo")


# Definitions


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"name": "bad name"}, "must be 1 to 64 letters"),
        ({"name": ""}, "must be 1 to 64 letters"),
        ({"name": "x" * 65}, "must be 1 to 64 letters"),
        ({"name": "Read\n"}, "must be 1 to 64 letters"),
        ({"name": "Read\x00"}, r"Read\\\\x00"),
        ({"name": "Lesen\ud800"}, "must be 1 to 64 letters"),
        ({"aliases": ("ls -l",)}, "must be 1 to 64 letters"),
        ({"description": " \n"}, "the description is empty"),
        ({"version": "1"}, "must look like 1.0.0"),
        ({"timeout": 0}, "timeout is 0.0; it must be a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout is nan; it must be a number of seconds above 0"),
        ({"timeout": float("inf")}, "timeout is inf; it must be .* at most ten years"),
        ({"max_attempts": 0}, "max_attempts is 0; it must be a whole number from 1 to 100"),
        ({"max_attempts": 101}, "max_attempts is 101; it must be a whole number from 1 to 100"),
        ({"retry": RetryPolicy(0)}, "retry.max_attempts is 0; it must be a whole number from 1 to 100"),
        ({"retry": RetryPolicy(3, delay_seconds=-1)}, "retry.delay_seconds is -1"),
        ({"retry": RetryPolicy(3, backoff=float("nan"))}, "retry.backoff is nan"),
        ({"output_schema": {"maximum": float("inf")}}, "its output schema.maximum: Infinity cannot"),
    ],
)
def test_what_a_provider_or_the_runtime_would_refuse_is_refused(
    declared: dict[str, Any], message: str, registry: ScopedRegistry
) -> None:
    with pytest.raises(InvalidToolError, match=message) as caught:
        registry.register(Recorder(**declared))

    str(caught.value).encode()
    assert registry.count() == 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([parameter("a b")], "the parameter name 'a b' must be"),
        ([parameter("a"), parameter("a")], "'a' is used twice"),
        ([parameter("a"), parameter("b", aliases=("a",))], "'a' is used twice"),
        ([parameter("a", "array", items={"pattern": "("})], "parameter 'a': pattern '\\(' does not compile"),
        ([parameter("a", required=False, default=float("nan"))], r"parameters\.a\.default: NaN"),
        ([parameter("a", enum=[object()])], r"parameters\.a\.enum\[0\]: an object of type object"),
        ([parameter("a", required=False, default="x" * 1_000_000)], "the limit is 1,000,000"),
    ],
)
def test_parameters_that_cannot_be_shown_or_checked_are_refused(
    parameters: list[Any], message: str, registry: ScopedRegistry
) -> None:
    with pytest.raises(InvalidToolError, match=message):
        registry.register(Recorder(*parameters))


def test_a_body_that_cannot_be_awaited_is_refused(registry: ScopedRegistry) -> None:
    class Blocking(Echo):
        def _execute(self, context: ExecutionContext, message: str) -> ToolResult:  # type: ignore[override]  # the mistake
            return ToolResult.ok(message)

    class Yielding(Echo):
        async def _execute(self, context: ExecutionContext, message: str) -> Any:
            yield message

    for wrong in (Blocking(), Yielding()):
        with pytest.raises(InvalidToolError, match="_execute is not an `async def`"):
            registry.register(wrong)


def test_a_parameter_that_the_body_cannot_be_given_is_refused(registry: ScopedRegistry) -> None:
    class Forgetful(Echo):
        parameters = (parameter("message"), parameter("times"))

    class Colliding(Echo):
        parameters = (parameter("context"),)

        async def _execute(self, context: ExecutionContext, **kwargs: Any) -> ToolResult:
            return ToolResult.ok(kwargs)

    with pytest.raises(InvalidToolError, match="_execute takes no argument 'times'"):
        registry.register(Forgetful())
    with pytest.raises(InvalidToolError, match=r"_execute\(self, context, /, \.\.\.\)"):
        registry.register(Colliding())


@pytest.mark.parametrize("thing", [Echo, object(), "Echo", None])
def test_only_instances_of_tools_are_registered(thing: Any, registry: ScopedRegistry) -> None:
    with pytest.raises(InvalidToolError, match=r"is not a tool\. Register"):
        registry.register(thing)


@pytest.mark.parametrize(
    "doubtful",
    [parameter("x", "path"), parameter("x", "integer", required=False, default="5")],
    ids=["type", "default"],
)
def test_a_doubtful_parameter_is_warned_about_and_refused_when_strict(
    doubtful: Any, registry: ScopedRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidToolError, match="x"):
        registry.register(Recorder(doubtful), strict=True)

    registry.register(Recorder(doubtful))

    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert registry.count() == 1


# Life cycle


class Living(Recorder):
    def __init__(self, name: str, log: list[str], broken: str = "") -> None:
        super().__init__(name=name)
        self.log, self.broken = log, broken

    async def initialize(self, context: ExecutionContext) -> None:
        self.log.append(f"{self.name} up")
        if self.broken == "up":
            raise OSError("no port")

    async def shutdown(self) -> None:
        self.log.append(f"{self.name} down")
        if self.broken == "down":
            raise OSError("stuck")


async def test_a_tool_that_cannot_start_is_named_and_the_others_are_shut_down(
    registry: ScopedRegistry, context: ExecutionContext
) -> None:
    log: list[str] = []
    registry.register_many([Living("a", log), Living("b", log, "up"), Living("c", log)])

    with pytest.raises(ToolError, match=r"^Tool 'b' error: cannot be initialized: no port"):
        await registry.initialize_all(context)

    assert log == ["a up", "b up", "a down", "b down", "c down"]


async def test_a_tool_that_takes_long_to_start_is_named_though_it_blocks(
    registry: ScopedRegistry,
    context: ExecutionContext,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Blocking(Living):
        async def initialize(self, context: ExecutionContext) -> None:
            wait_until(lambda: bool(caplog.records), 30, "nothing was logged")

    monkeypatch.setattr("forge_tools.tool.registry.SLOW_SECONDS", 0.05)
    registry.register_many([Living("a", []), Blocking("b", [])])

    await registry.initialize_all(context)

    assert [record.__dict__["tool"] for record in caplog.records] == ["b"]


async def test_one_that_fails_to_shut_down_stops_none_of_the_others(
    registry: ScopedRegistry, context: ExecutionContext, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    registry.register_many([Living("a", log, "down"), Living("b", log)])

    await registry.initialize_all(context)
    await registry.shutdown_all()

    assert log == ["a up", "b up", "a down", "b down"]
    assert "Tool a failed to shut down" in caplog.text


async def test_a_tool_registered_later_or_again_is_initialized_then(
    registry: ScopedRegistry, context: ExecutionContext
) -> None:
    log: list[str] = []
    registry.register(Living("a", log))
    await registry.initialize_all(context)

    registry.register(Living("b", log))
    registry.register(Living("a", log), replace=True)
    await registry.initialize_all(context)

    assert log == ["a up", "a up", "b up"]


# Threads


@pytest.mark.usefixtures("_empty_process_registry")
def test_threads_that_race_for_the_first_construction_get_one_registry() -> None:
    start = threading.Barrier(16)

    def construct(_: int) -> ToolRegistry:
        start.wait()
        return ToolRegistry()

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(construct, range(16)))

    assert all(registry is made[0] for registry in made)


def test_readers_see_a_whole_registry_while_writers_change_it(registry: ScopedRegistry) -> None:
    tools = [Recorder(name=f"T{index}", aliases=(f"alias{index}",)) for index in range(50)]
    done = threading.Event()

    def write() -> None:
        for _ in range(20):
            registry.register_many(tools)
            for tool in tools:
                registry.deregister(tool.name)
        done.set()

    def read() -> int:
        rounds = 0
        time_left = within(60, "nobody stops the reader")
        while not done.is_set() and next(time_left):
            names = registry.list_names()
            assert len(names) == len(set(names))
            registry.get("alias7")
            rounds += 1
        return rounds

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        pool.submit(write).result(60)

    assert all(reader.result() for reader in readers)
    assert registry.count() == 0


def test_ten_threads_that_want_one_name_have_one_winner(registry: ScopedRegistry) -> None:
    start = threading.Barrier(10)

    def attempt(_: int) -> bool:
        start.wait()
        try:
            registry.register(Echo())
        except DuplicateToolError:
            return False
        return True

    with ThreadPoolExecutor(10) as pool:
        assert sum(pool.map(attempt, range(10))) == 1
