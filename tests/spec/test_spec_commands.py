"""The verification commands of the completion checklist, each run as given in its own interpreter."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

spec = pytest.mark.spec
ROOT = Path(__file__).parents[2]
LANGSMITHS_OWN = "ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning"

IMPORTS = """
import asyncio
from forge_tools.base import (
    ToolParameter, ToolResult, ExecutionContext,
    ToolCategory, BaseTool, ToolExecution
)
from forge_tools.registry import ToolRegistry
from forge_tools.executor import ToolExecutor

def tool(name_, parameters_, body):
    class Declared(BaseTool):
        @property
        def name(self): return name_
        @property
        def description(self): return f'{name_} tool'
        @property
        def category(self): return ToolCategory.OTHER
        @property
        def parameters(self): return parameters_
        async def _execute(self, context, **kwargs): return await body(kwargs)
    return Declared()

async def echo(kwargs): return ToolResult.ok(kwargs['message'])
async def slow(kwargs): await asyncio.sleep(10)
MESSAGE = [ToolParameter(name='message', type='string', description='Message', required=True)]
context = ExecutionContext(working_dir='/tmp')
"""


def run(script: str) -> None:
    words = [sys.executable, "-W", "error", "-W", LANGSMITHS_OWN, "-c", IMPORTS + script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@spec("S3-149")
def test_the_modules_are_there() -> None:
    assert all((ROOT / "forge_tools" / f"{name}.py").is_file() for name in ("__init__", "base", "registry", "executor"))


@spec("S3-150")
def test_the_eight_names_import() -> None:
    run("")


@spec("S3-151")
def test_the_minimum_length_renders() -> None:
    run("""
schema = ToolParameter(name='p', type='string', description='Path', required=True, min_length=1).to_json_schema()
assert schema['type'] == 'string'
assert schema['description'] == 'Path'
assert schema.get('minLength') == 1
""")


@spec("S3-152")
def test_results_have_their_attributes() -> None:
    run("""
success, failure = ToolResult.ok('output', lines=10), ToolResult.fail('error message')
assert success.success == True and success.output == 'output' and success.metadata['lines'] == 10
assert failure.success == False and failure.error == 'error message'
""")


@spec("S3-153")
def test_a_tool_declared_by_properties_works() -> None:
    run("""
declared = tool('Echo', MESSAGE, echo)
assert declared.to_openai_schema()['type'] == 'function'
assert declared.to_openai_schema()['function']['name'] == 'Echo'
assert declared.to_anthropic_schema()['name'] == 'Echo'
assert 'input_schema' in declared.to_anthropic_schema()
assert declared.validate_params(message='Hello')[0] == True
valid, error = declared.validate_params()
assert valid == False and 'message' in error
result = asyncio.run(declared.execute(context, message='Hello World'))
assert result.success == True and result.output == 'Hello World'
""")


@spec("S3-154")
def test_the_registry_is_one_object() -> None:
    run("""
ToolRegistry.reset()
assert ToolRegistry() is ToolRegistry()
""")


@spec("S3-155")
def test_the_registry_goes_through_its_operations() -> None:
    run("""
registry, declared = ToolRegistry(), tool('Test', [], echo)
registry.register(declared)
assert registry.exists('Test') and registry.count() == 1
assert registry.get('Test') is declared
assert len(registry.list_all()) == 1 and registry.list_names() == ['Test']
assert registry.deregister('Test') == True and not registry.exists('Test')
""")


@spec("S3-156")
def test_the_executor_calls_and_describes() -> None:
    run("""
registry = ToolRegistry()
registry.register(tool('Echo', MESSAGE, echo))
executor = ToolExecutor(registry)
result = asyncio.run(executor.execute('Echo', context, message='Hello'))
assert result.success == True and result.output == 'Hello'
result = asyncio.run(executor.execute('Unknown', context))
assert result.success == False and 'Unknown' in result.error
schemas = executor.get_all_schemas('openai')
assert len(schemas) == 1 and schemas[0]['function']['name'] == 'Echo'
""")


@spec("S3-157")
def test_the_timeout_is_kept() -> None:
    run("""
result = asyncio.run(tool('Slow', [], slow).execute(ExecutionContext(working_dir='/tmp', timeout=1)))
assert result.success == False
assert 'timed out' in result.error.lower()
""")


@spec("S3-161")
def test_langchain_recognises_a_tool_without_parameters() -> None:
    run("""
from langchain_core.tools import Tool
wrapped = tool('Test', [], echo).to_langchain_tool()
assert isinstance(wrapped, Tool)
assert wrapped.name == 'Test' and wrapped.description == 'Test tool'
""")


@spec("S3-175..181")
def test_the_dependencies_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]

    for name in ("pydantic", "langchain-core", "pytest", "pytest-asyncio", "pytest-cov", "mypy", "ruff"):
        assert any(requirement.startswith(f"{name}>=") for requirement in declared), name
