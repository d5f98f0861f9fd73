"""The code tools on small projects in several languages, and on input that no project should have."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_tools import ExecutionContext, ToolResult
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tools import (
    CodebaseMap,
    DependencyGraph,
    FindReferences,
    ImportsExports,
    ResolveSymbol,
    SearchCode,
    SymbolInfo,
)
from forge_tools.tools.builtin import Deadline
from forge_tools.tools.code.codebase import read
from forge_tools.tools.code.graph import cycles_of
from tests.unit.tools.code.projects import PROJECTS, write

TOOLS = (SearchCode, CodebaseMap, SymbolInfo, ImportsExports, DependencyGraph, ResolveSymbol, FindReferences)


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Iterator[Path]:
    token = REACH.set(Reach(cache=tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    yield folder
    REACH.reset(token)


async def ask(tool: type[Any], folder: Path, **options: Any) -> ToolResult:
    result: ToolResult = await tool().execute(ExecutionContext(working_dir=str(folder), timeout=30), **options)
    return result


async def answer(tool: type[Any], folder: Path, **options: Any) -> ToolResult:
    result = await ask(tool, folder, **options)
    assert result.success, result.error
    return result


@pytest.mark.parametrize("language", PROJECTS)
async def test_definitions_are_found_where_they_are(language: str, project: Path) -> None:
    write(project, PROJECTS[language].files)

    for symbol, place, kind in PROJECTS[language].definitions:
        found = (await answer(SymbolInfo, project, symbol=symbol)).metadata["symbol"]
        assert (f"{found['path']}:{found['line']}", found["kind"]) == (place, kind), symbol


@pytest.mark.parametrize(
    ("language", "symbol", "place"),
    [
        ("python", "app.Parser", "app/parsing.py:4"),
        ("python", "app.parsing.Parser", "app/parsing.py:4"),
        ("python", "app.Parser.rest", "app/parsing.py:6"),
        ("python", "parsing.LIMIT", "app/parsing.py:1"),
        ("python", "main.helpers.clean", "app/helpers.py:1"),
        ("typescript", "src.index.Square", "src/shape.ts:2"),
        ("typescript", "src.Square.area", "src/shape.ts:3"),
    ],
)
async def test_a_name_in_a_package_or_module_is_looked_up_there(
    language: str, symbol: str, place: str, project: Path
) -> None:
    write(project, PROJECTS[language].files | {"other.py": "class Parser:\n    def rest(self): ...\n"})

    found = (await answer(SymbolInfo, project, symbol=symbol)).metadata["symbol"]

    assert f"{found['path']}:{found['line']}" == place


async def test_a_name_in_an_unknown_package_is_refused_with_what_to_pass_instead(project: Path) -> None:
    write(project, PROJECTS["python"].files)

    unknown = await ask(SymbolInfo, project, symbol="pydantic.BaseModel")
    similar = await ask(SymbolInfo, project, symbol="pydantic.Parser")

    way_out = "Pass 'BaseModel' alone, or as path the folder that holds the package or file of 'pydantic'."
    assert (unknown.error_code, way_out in unknown.error) == ("SYMBOL_NOT_FOUND", True)
    assert "Close: Parser (app/parsing.py:4)." in similar.error


@pytest.mark.parametrize("name", ["inner", "typed", "second", "broken", "chained", "π"])
async def test_definitions_in_odd_places_are_found_without_an_index(name: str, project: Path) -> None:
    text = "class A: inner = 1\nif A: typed: int\nx = 1; second = 2\ndef \\\n broken(): ...\nx = chained = 3\nπ=3\nchained = 4\n"
    write(project, {"a.py": text, "b.py": f"from a import {name}\nprint({name})\n"})

    assert (await answer(SymbolInfo, project, symbol=name)).metadata["symbol"]["path"] == "a.py"


@pytest.mark.parametrize(
    ("language", "paths"),
    [("c", ["a.c", "a.h"]), ("cpp", ["a.cpp", "a.h"]), ("python", [])],
)
async def test_a_header_is_of_c_and_of_cpp(language: str, paths: list[str], project: Path) -> None:
    write(project, dict.fromkeys(("a.c", "a.cpp", "a.h"), "struct lock { int held; };\nint held = take(1);\n"))

    for query in ("lock", "int held = take($X);"):
        hits = (await answer(SearchCode, project, query=query, language=language)).metadata["hits"]
        assert sorted(hit["path"] for hit in hits) == paths, query


async def test_where_there_are_only_headers_a_pattern_of_c_finds_them(project: Path) -> None:
    write(project, {"a.h": "int held = take(1);\n"})
    assert (await answer(SearchCode, project, query="int held = take($X);", language="c")).metadata["total"] == 1


@pytest.mark.parametrize("language", PROJECTS)
async def test_imports_lead_to_their_files(language: str, project: Path) -> None:
    write(project, PROJECTS[language].files)

    for file, module, target in PROJECTS[language].imports:
        imports = (await answer(ImportsExports, project, file=file)).metadata["imports"]
        assert [one["resolved"] for one in imports if one["module"] == module] == [target], module


@pytest.mark.parametrize("language", PROJECTS)
async def test_references_are_found_and_comments_and_strings_are_none(language: str, project: Path) -> None:
    write(project, PROJECTS[language].files)
    symbol, places = PROJECTS[language].references

    found = (await answer(FindReferences, project, symbol=symbol)).metadata["references"]

    assert [f"{one['path']}:{one['line']} {one['kind']}" for one in found] == places


async def test_a_name_is_resolved_through_files_that_hand_it_on(project: Path) -> None:
    write(project, PROJECTS["python"].files)

    [found] = (await answer(ResolveSymbol, project, symbol="Parser", file="app/main.py")).metadata["definitions"]
    [module] = (await answer(ResolveSymbol, project, symbol="helpers.clean", file="app/main.py")).metadata[
        "definitions"
    ]
    outside = await answer(ResolveSymbol, project, symbol="Path", file="app/main.py")

    assert (found["path"], found["confidence"], found["via"]) == (
        "app/parsing.py",
        "exact",
        ["app/main.py", "app/__init__.py"],
    )
    assert (module["path"], module["line"]) == ("app/helpers.py", 1)
    assert outside.metadata["external"] == "pathlib"


async def test_imports_that_go_round_are_named_and_end(project: Path) -> None:
    write(
        project,
        {"a.py": "from b import x\n", "b.py": "from c import x\n", "c.py": "from a import x\n", "d.py": "import a\n"},
    )

    graph = await answer(DependencyGraph, project)
    lost = await ask(ResolveSymbol, project, symbol="x", file="a.py")

    assert graph.metadata["cycles"] == [["a.py", "b.py", "c.py"]]
    assert "cycle: a.py <-> b.py <-> c.py" in graph.output
    assert lost.error_code == "SYMBOL_NOT_FOUND"


@pytest.mark.parametrize(
    ("form", "drawn"),
    [
        ("mermaid", '  n0["a.py"]'),
        ("dot", '  "a.py" -> "b.py";'),
        ("json", '{"from": "a.py", "to": "b.py", "line": 1}'),
    ],
)
async def test_a_graph_is_drawn_in_other_forms(form: str, drawn: str, project: Path) -> None:
    write(project, {"a.py": "import b\n", "b.py": ""})

    assert drawn in (await answer(DependencyGraph, project, format=form)).output


async def test_a_graph_for_programs_is_nothing_but_that(project: Path) -> None:
    write(project, {"a.py": "import b\n", "b.py": ""})
    (project / "c.py").write_bytes(b"\0")

    result = await answer(DependencyGraph, project, format="json")

    assert json.loads(result.output)["nodes"]
    assert "c.py" in str(result.metadata)


async def test_ten_thousand_files_in_a_ring_are_one_cycle() -> None:
    ring = {str(n): {str((n + 1) % 10_000): 1} for n in range(10_000)}

    assert [len(one) for one in cycles_of(ring)] == [10_000]


async def test_the_best_match_comes_first(project: Path) -> None:
    write(project, {"a.py": "def parse_url(): ...\ndef reparse(): ...\nclass Parse: ...\ndef url_parse(): ...\n"})

    hits = (await answer(SearchCode, project, query="Parse")).metadata["hits"]

    assert [hit["name"] for hit in hits] == ["Parse", "parse_url", "url_parse", "reparse"]


async def test_code_is_found_by_its_shape(project: Path) -> None:
    write(project, {"a.py": "x = open(path, 'r')\nopen(other)\n# open(third, 1)\n"})

    hits = (await answer(SearchCode, project, query="open($A, $B)")).metadata["hits"]

    assert [(hit["path"], hit["line"]) for hit in hits] == [("a.py", 1)]


@pytest.mark.parametrize("query", ["def $(", "$$$", "x = $A\ny = $B"])
async def test_a_pattern_that_could_match_nothing_is_refused(query: str, project: Path) -> None:
    write(project, {"a.py": "x = 1\ny = 2\n"})

    assert (await ask(SearchCode, project, query=query)).error_code == "INVALID_PATTERN"


async def test_a_map_shows_first_what_the_rest_uses(project: Path) -> None:
    write(project, {"core.py": "def used(): ...\n", "odd.py": "def unused(): ...\n"})
    write(project, {f"user{n}.py": "from core import used\nused()\n" for n in range(5)})

    whole = await answer(CodebaseMap, project)
    assert whole.output.index("used()") > 0
    assert (whole.metadata["shown"], whole.metadata["total"]) == (2, 2)

    many = {f"m{n}.py": f"def name_{n}(argument, another_argument, yet_another): ...\n" for n in range(60)}
    write(project, many)
    small = await answer(CodebaseMap, project, max_chars=500)
    assert "def used()" in small.output
    assert small.metadata["shown"] < 60


async def test_what_was_read_is_kept_and_what_has_changed_is_read_again(project: Path) -> None:
    write(project, {"a.py": "def one(): ...\n", "b.py": "def two(): ...\n"})
    for path in project.iterdir():
        os.utime(path, ns=(1, 1))
    assert (await answer(SearchCode, project, query="one")).metadata["index"]["parsed"] == 1
    await answer(CodebaseMap, project)

    again = await answer(SearchCode, project, query="one")
    (project / "a.py").write_text("def six(): ...\n")
    changed = await answer(SearchCode, project, query="six")
    (project / "b.py").rename(project / "c.py")
    moved = await answer(SymbolInfo, project, symbol="two")

    assert again.metadata["index"]["parsed"] == 0
    assert (changed.metadata["total"], changed.metadata["index"]["parsed"]) == (1, 1)
    assert (moved.metadata["symbol"]["path"], moved.metadata["index"]["parsed"]) == ("c.py", 0)


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b""])
async def test_a_damaged_index_is_made_again(damage: bytes, project: Path, tmp_path: Path) -> None:
    write(project, {"a.py": "def one(): ...\n"})
    await answer(SearchCode, project, query="one")
    [kept] = (tmp_path / "cache").glob("*.db")
    for file in (tmp_path / "cache").iterdir():
        file.unlink()
    kept.write_bytes(damage)

    for _ in range(3):
        assert (await answer(SearchCode, project, query="one")).metadata["total"] == 1
    assert kept.read_bytes().startswith(b"SQLite format 3")


async def test_a_cache_that_is_somebody_elses_is_not_used(project: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    write(project, {"a.py": "def one(): ...\n"})

    assert (await answer(SearchCode, project, query="one")).metadata["total"] == 1
    assert list((tmp_path / "cache").iterdir()) == []


async def test_what_is_not_code_that_people_write_is_left_out_and_named(project: Path) -> None:
    (project / "big.py").write_text("x = 1\n" * 180_000)
    (project / "min.js").write_text("var a=1;" * 5_000)
    (project / "bin.py").write_bytes(b"\0\1")
    (project / "loop").symlink_to(project)
    (project / "bad.py").write_bytes(b"def broken(:\n\ndef fine():\n    pass\n\xff\xfe = 3\n")

    result = await answer(SearchCode, project, query="fine")

    assert [hit["path"] for hit in result.metadata["hits"]] == ["bad.py"]
    assert result.metadata["index"]["skipped"] == {
        "big.py": "larger than 1 MiB",
        "min.js": "minified",
        "bin.py": "binary",
    }
    assert "left out: " in result.output


async def test_brackets_without_end_do_no_harm(project: Path) -> None:
    write(project, {"a.py": "def fine(): ...\nx = " + "\n".join("(" * 1000 for _ in range(20)) + "\n"})

    assert (await answer(SearchCode, project, query="fine")).metadata["total"] == 1


@pytest.mark.parametrize("tool", [ImportsExports, SymbolInfo])
async def test_a_language_that_is_not_known_is_said_so(tool: type[Any], project: Path) -> None:
    write(project, {"a.toml": "x = 1"})

    result = await ask(tool, project, file="a.toml", **({"symbol": "x"} if tool is SymbolInfo else {}))

    assert result.error_code == "UNSUPPORTED_LANGUAGE"
    assert "Grep can search it" in (result.error or "")


async def test_a_symbol_that_is_not_there_is_refused_with_those_like_it(project: Path) -> None:
    write(project, {"a.py": "class Registry: ...\n"})

    result = await ask(SymbolInfo, project, symbol="Registy")

    assert "Close: Registry (a.py:1)" in (result.error or "")


async def test_a_name_may_have_signs_that_expressions_use(project: Path) -> None:
    write(project, {"a.js": "function $el() {}\n$el();\n"})

    found = (await answer(FindReferences, project, symbol="$el")).metadata["references"]

    assert [(one["line"], one["kind"]) for one in found] == [(2, "call")]


async def test_a_name_with_a_dollar_is_searched_as_a_name(project: Path) -> None:
    write(project, {"a.js": "function $el() {}\n"})

    assert [hit["name"] for hit in (await answer(SearchCode, project, query="$el")).metadata["hits"]] == ["$el"]


async def test_a_module_in_a_package_is_not_imported_by_its_last_name(project: Path) -> None:
    files = {"pkg/__init__.py": "", "pkg/typing.py": "", "pkg/a.py": "import typing\nimport pkg.typing\n"}
    write(project, {**files, "src/top.py": "", "main.py": "import top\n"})

    inner = (await answer(ImportsExports, project, file="pkg/a.py")).metadata["imports"]
    outer = (await answer(ImportsExports, project, file="main.py")).metadata["imports"]

    assert [one["resolved"] for one in (*inner, *outer)] == [None, "pkg/typing.py", "src/top.py"]


@pytest.mark.parametrize("file", ["./a.py", "b/../a.py", "{project}/a.py"])
async def test_a_file_is_named_in_any_form_that_leads_to_it(file: str, project: Path) -> None:
    write(project, {"a.py": "def run(): ...\nrun()\n", "b/c.py": "def run(): ...\n"})

    found = await answer(FindReferences, project, symbol="run", file=file.format(project=project))

    assert [(one["path"], one["confidence"]) for one in found.metadata["references"]] == [
        ("a.py", "exact"),
        ("b/c.py", "guess"),
    ]


async def test_same_names_are_told_apart_by_file(project: Path) -> None:
    write(
        project,
        {"a.py": "def run(): ...\nrun()\n", "b.py": "def run(): ...\nrun()\n", "c.py": "from a import run\nrun()\n"},
    )

    found = (await answer(FindReferences, project, symbol="run", file="a.py")).metadata["references"]

    assert {(one["path"], one["confidence"]) for one in found} == {
        ("a.py", "exact"),
        ("b.py", "guess"),
        ("c.py", "exact"),
    }


@pytest.mark.parametrize("tool", TOOLS)
async def test_nothing_outside_the_workspace_is_read(tool: type[Any], project: Path) -> None:
    options = {"symbol": "x", "file": "../secret.py", "query": "x", "path": ".."}
    wanted = {one.name for one in tool.parameters}
    (project.parent / "secret.py").write_text("x = 1\n")

    result = await ask(tool, project, **{name: value for name, value in options.items() if name in wanted})

    assert result.error_code == "PATH_OUTSIDE_WORKSPACE"


async def test_an_empty_folder_has_nothing(project: Path) -> None:
    assert (await answer(SearchCode, project, query="x")).metadata["total"] == 0
    assert (await answer(CodebaseMap, project)).metadata["total"] == 0
    assert (await answer(DependencyGraph, project)).metadata["nodes"] == 0


def test_time_that_is_over_leaves_an_answer_that_says_so(project: Path) -> None:
    write(project, {"a.py": "def one(): ...\n"})
    REACH.set(replace(REACH.get(), cache=None))

    assert read(Workspace(project), ".", Deadline(0.0)).is_partial
