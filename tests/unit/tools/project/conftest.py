"""Projects written for a test, and the tools called on them."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forge_tools.model import ToolResult
from forge_tools.tool.base import BaseTool
from forge_tools.tools.project.conventions import ExtractConventions
from forge_tools.tools.project.detect import DetectProjectType
from forge_tools.tools.project.overview import ProjectOverview

Call = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def project(write: Callable[[str, bytes], Path]) -> Callable[[dict[str, str | bytes]], None]:
    """Write files by path."""

    def fill(files: dict[str, str | bytes]) -> None:
        for path, content in files.items():
            write(path, content if isinstance(content, bytes) else content.encode())

    return fill


@pytest.fixture
def detect(caller: Callable[[BaseTool], Call]) -> Call:
    return caller(DetectProjectType())


@pytest.fixture
def conventions(caller: Callable[[BaseTool], Call]) -> Call:
    return caller(ExtractConventions())


@pytest.fixture
def overview(caller: Callable[[BaseTool], Call]) -> Call:
    return caller(ProjectOverview())
