"""Secrets in the context of a call in process: the tool has them, and nothing that the call leaves behind."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forge_tools.model import File
from forge_tools.model.scope import Report
from forge_tools.model.secret_names import REDACTED
from forge_tools.sandbox.artifacts import FolderArtifacts
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.base import ExecutionContext, ToolResult
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from tests.spec.sample_tools import Recorder, parameter

SECRET = "s3cret-key"
METADATA = {"trace": "t-1", "auth": {"api_key": SECRET}, "note": f"with {SECRET}"}


@pytest.fixture
def secretive(context: ExecutionContext) -> ExecutionContext:
    return context.model_copy(update={"metadata": METADATA})


def executor_of(tool: Recorder, **options: Any) -> ToolExecutor:
    registry = ScopedRegistry()
    registry.register(tool)
    return ToolExecutor(registry, **options)


class Quoting(Recorder):
    async def _execute(self, context: ExecutionContext, **parameters: Any) -> ToolResult:
        assert context.metadata == METADATA
        context.emit(f"Signing in with {SECRET}\n")
        return await super()._execute(context, **parameters)


@pytest.mark.parametrize(
    "answer",
    [
        ToolResult.ok({SECRET: [f"Bearer {SECRET}"]}, used=SECRET),
        ToolResult.fail(f"401 for {SECRET}", error_details={"key": SECRET}),
        ValueError(f"401 for {SECRET}"),
        KeyboardInterrupt(SECRET),
    ],
)
async def test_a_secret_of_the_context_is_in_nothing_that_the_call_leaves_behind(
    secretive: ExecutionContext, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    heard: list[Report] = []
    executor = executor_of(Quoting(parameter("url"), answer=answer))
    try:
        result = await executor.call("Recorder", {"url": f"u?k={SECRET}"}, secretive, on_report=heard.append)
    except KeyboardInterrupt:
        result = ToolResult.ok(REDACTED)

    [execution] = executor.get_executions()
    assert SECRET not in repr((result, execution, heard)) + caplog.text
    assert REDACTED in repr(result)
    assert REDACTED in repr(heard)
    assert execution.parameters == {"url": f"u?k={REDACTED}"}
    assert execution.context.metadata == {"trace": "t-1", "auth": {"api_key": REDACTED}, "note": f"with {REDACTED}"}
    assert secretive.metadata["auth"] == {"api_key": SECRET}


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.json", "a.xml", "a.svg", f"{SECRET}.yaml"])
async def test_a_part_that_is_text_has_no_secret_whatever_text_it_is(
    secretive: ExecutionContext, tmp_path: Path, name: str
) -> None:
    part = File(f'<a b="{SECRET}"/>'.encode(), name=name)
    reach = Reach(root=tmp_path, artifacts=FolderArtifacts(tmp_path / "kept"))

    result = await executor_of(Quoting(answer=ToolResult.ok(part)), reach=reach).call("Recorder", {}, secretive)

    [kept] = result.files
    assert SECRET not in str(kept.name)
    assert await kept.bytes() == f'<a b="{REDACTED}"/>'.encode()


async def test_a_dry_run_shows_no_part_of_it(secretive: ExecutionContext) -> None:
    dry = secretive.model_copy(update={"dry_run": True})

    result = await executor_of(Recorder(parameter("url"))).execute("Recorder", dry, url="x" * 195 + SECRET)

    assert SECRET[:3] not in repr(result)


@pytest.mark.parametrize("where", ["metadata", "output"])
async def test_a_number_too_long_to_be_written_does_no_harm(context: ExecutionContext, where: str) -> None:
    metadata = {"token": 10**5000 if where == "metadata" else SECRET}
    tool = Recorder(parameter("url"), answer=10**5000 if where == "output" else SECRET)

    result = await executor_of(tool).execute("Recorder", context.model_copy(update={"metadata": metadata}), url="u")

    assert result.success


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "output",
    [{"body": SECRET.encode()}, {SECRET}, [SimpleNamespace(key=SECRET)], nested(SECRET, 150), {(SECRET,): 1}],
    ids=["bytes", "set", "object", "deep", "key"],
)
@pytest.mark.parametrize("limit", [20, 1000])
async def test_an_output_that_has_to_be_cut_shows_no_secret_that_its_text_has(
    secretive: ExecutionContext, tmp_path: Path, output: Any, limit: int
) -> None:
    artifacts = FolderArtifacts(tmp_path / "kept")
    with_artifacts = Reach(root=tmp_path, artifacts=artifacts)
    executor = executor_of(Recorder(answer=[[output, "x" * 2000]]), reach=with_artifacts)

    result = await executor.execute("Recorder", secretive.model_copy(update={"max_output_size": limit}))

    with open(await artifacts.open(result.metadata["artifact"], secretive), "rb") as file:
        assert SECRET not in file.read().decode() + repr(result)
