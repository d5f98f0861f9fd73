"""The example tools of the second group: the file that is read, and the search that needs an engine."""

import errno
import os
from collections.abc import Iterator
from typing import Annotated, Any
from unittest.mock import Mock

import pytest

from forge_tools.base import Capabilities
from forge_tools.errors import ToolFailure
from forge_tools.sandbox.files import Files, files
from forge_tools.testing import InlineExecutor
from forge_tools.tool import Depends, engine, tool
from forge_tools.tools import Read

spec = pytest.mark.spec


class Engine:
    def search(self, path: str, query: str) -> list[str]:
        if query == "(":
            raise ValueError("unbalanced")
        return [f"{path}/{query}.py"]


@tool(capabilities=Capabilities(requires_engine=True))
def search_code(query: str, index: Annotated[Engine, Depends(engine)], path: str = ".") -> list[str]:
    """Search code."""
    try:
        return index.search(path, query)
    except ValueError as error:
        raise ToolFailure(f"Search failed: {error}", code="SEARCH_ERROR") from error


@tool
def outline(path: str, index: Annotated[Engine | None, Depends(engine)]) -> str:
    """Outline a file, by the engine where there is one."""
    return "by lines" if index is None else "by symbols"


@tool
def tidy(files: Annotated[Files, Depends(files, per="call")]) -> list[Any]:
    """Use each method of the file system."""
    files.write("new", files.read("old"))
    size, was_there = files.stat("new").st_size, files.exists("old")
    files.unlink("old")
    return [size, was_there, files.exists("old"), files.readdir()]


@pytest.fixture
def tools() -> Iterator[InlineExecutor]:
    with InlineExecutor(Read, tidy, files={"a.txt": "one\ntwo\nthree\n", "old": "x"}) as tools:
        yield tools


@spec("S1-46")
@pytest.mark.parametrize(
    "parameters",
    [{}, {"path": 1}, *({"path": "a.txt", "offset": one} for one in ("1", -1)), {"path": "a.txt", "limit": "1"},
     {"path": "a.txt", "limit": 0}],
)  # fmt: skip
def test_reading_a_file_refuses_parameters_that_mean_nothing(tools: InlineExecutor, parameters: dict[str, Any]) -> None:
    assert tools.run("read_file", **parameters).error_code == "VALIDATION_ERROR"


@spec("S1-47", "S1-48", "S1-50")
def test_a_file_is_read_whole_or_by_lines_and_what_was_read_is_counted(tools: InlineExecutor) -> None:
    whole = tools.run("read_file", path="a.txt", line_numbers=False)
    part = tools.run("read_file", path="a.txt", offset=2, limit=1, line_numbers=False)

    assert (whole.output, part.output) == ("one\ntwo\nthree", "two")
    told = whole.to_dict("nested")["metadata"]
    assert (told["bytesRead"], told["filesAccessed"]) == (14, ["a.txt"])
    assert told["executionTimeMs"] > 0


@spec("S1-49")
def test_what_cannot_be_read_is_named(tools: InlineExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tools.run("read_file", path="gone")
    for name in ("pread", "preadv"):
        monkeypatch.setattr(os, name, Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    broken = tools.run("read_file", path="a.txt")

    assert (gone.error_code, gone.error_details["path"]) == ("FILE_NOT_FOUND", "gone")
    assert (broken.error_code, broken.error_details["path"]) == ("READ_ERROR", "a.txt")
    assert broken.error == "Cannot read a.txt: Input/output error"


@spec("S1-51")
def test_a_search_needs_its_engine_and_its_failure_has_a_code() -> None:
    with InlineExecutor(search_code) as tools:
        assert tools.run("search_code", query="x").error_code == "ENGINE_NOT_AVAILABLE"
    with InlineExecutor(search_code, overrides={engine: Engine}) as tools:
        assert tools.run("search_code", query="x").output == ["./x.py"]
        assert tools.run("search_code", query="(").error_code == "SEARCH_ERROR"


@spec("S1-10")
def test_an_engine_may_be_there_or_not() -> None:
    with InlineExecutor(outline) as tools:
        assert tools.run("outline", path="a.py").output == "by lines"
    with InlineExecutor(outline, overrides={engine: Engine}) as tools:
        assert tools.run("outline", path="a.py").output == "by symbols"


@spec("S1-09")
def test_the_file_system_is_handed_over_and_a_test_may_hand_over_another(tools: InlineExecutor) -> None:
    class Fake:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: os.stat_result([7] * 10) if name == "stat" else name

    assert tools.run("tidy").output == [1, True, False, ["a.txt", "new"]]
    with InlineExecutor(tidy, overrides={files: Fake}) as others:
        assert others.run("tidy").output == [7, "exists", "exists", "readdir"]
