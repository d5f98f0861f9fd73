"""DetectProjectType: what the files of a project declare, each with the line that shows it, and nothing run."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ToolResult

Call = Callable[..., Awaitable[ToolResult]]
Fill = Callable[[dict[str, str | bytes]], None]

PYPROJECT = """[project]
name = "a"
keywords = ["celery"]
dependencies = [
  "celery[redis]>=5",
  "FastAPI",
]
[project.scripts]
serve = "a.cli:main"
[tool.pytest.ini_options]
[tool.poetry]
"""
PACKAGE = """{
  // a comment
  "name": "b", "main": "index.js",
  "scripts": {"test": "vitest run"},
  "dependencies": {"react": "19",},
  "workspaces": ["packages/*"]
}
"""


def said(result: ToolResult, section: str) -> dict[str, tuple[str, str]]:
    assert result.success, result.error
    return {one["what"]: (one["evidence"], one["confidence"]) for one in result.metadata[section]}


async def test_python_is_told_with_its_lines(project: Fill, detect: Call) -> None:
    project({"pyproject.toml": PYPROJECT, "a/cli.py": "x = 1\n", "poetry.lock": "", ".github/workflows/t.yml": "on:\n"})
    seen = await detect()
    assert said(seen, "kinds") == {"Python package": ("pyproject.toml:1", "certain")}
    assert said(seen, "frameworks") == {
        "Celery": ("pyproject.toml:5", "certain"),
        "FastAPI": ("pyproject.toml:6", "certain"),
    }
    assert said(seen, "entry_points") == {"serve = a.cli:main": ("pyproject.toml:9", "certain")}
    assert said(seen, "commands") == {"test: pytest": ("pyproject.toml:10", "likely")}
    assert said(seen, "package_managers")["poetry"] == ("pyproject.toml:11", "certain")
    assert said(seen, "ci") == {".github/workflows/t.yml": (".github/workflows/t.yml:1", "certain")}
    assert said(seen, "languages") == {"Python (1 file, 6 bytes)": ("a/cli.py:1", "likely")}


async def test_node_is_told_also_where_its_json_has_comments(project: Fill, detect: Call) -> None:
    project({"package.json": PACKAGE, "packages/p/package.json": "{}", "pnpm-lock.yaml": "", "Dockerfile": "FROM x\n"})
    seen = await detect()
    assert said(seen, "commands") == {"test: npm run test (vitest run)": ("package.json:4", "certain")}
    assert said(seen, "frameworks") == {"React": ("package.json:5", "certain")}
    assert said(seen, "members") == {
        "packages/*": ("package.json:6", "certain"),
        "packages/p": ("packages/p/package.json:1", "likely"),
    }
    assert said(seen, "package_managers") == {"pnpm": ("pnpm-lock.yaml:1", "certain")}
    assert said(seen, "containers") == {"Dockerfile": ("Dockerfile:1", "certain")}


@pytest.mark.parametrize(
    ("files", "section", "what"),
    [
        ({"Cargo.toml": '[package]\nname="a"\n[dependencies]\ntokio = "1"\n'}, "frameworks", "Tokio"),
        ({"Cargo.toml": '[workspace]\nmembers = ["x"]\n'}, "members", "x"),
        ({"go.mod": "module m\n\nrequire (\n\tgithub.com/spf13/cobra v1.8.0\n)\n"}, "frameworks", "Cobra"),
        ({"go.work": "go 1.22\nuse (\n\t./a\n)\n", "go.mod": "module m\n"}, "members", "./a"),
        ({"pnpm-workspace.yaml": "packages:\n  - 'apps/*'\n"}, "members", "apps/*"),
        ({"pom.xml": "<artifactId>spring-boot-starter</artifactId>"}, "frameworks", "Spring Boot"),
        ({"Gemfile": "gem 'rails'\n"}, "frameworks", "Rails"),
        ({"composer.json": '{"require": {"laravel/framework": "1"}}'}, "frameworks", "Laravel"),
        ({"requirements-dev.txt": "# c\nflask==3\n"}, "frameworks", "Flask"),
        ({"Makefile": "test: x\n\tpytest\nVAR := 1\n"}, "commands", "test: make test"),
        ({"App.csproj": "<Project/>"}, "kinds", ".NET project"),
    ],
)
async def test_other_manifests_are_read_too(
    project: Fill, detect: Call, files: dict[str, str | bytes], section: str, what: str
) -> None:
    project(files)
    assert what in said(await detect(), section)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", b"[project\n"),
        ("pyproject.toml", b"a = " + b"[" * 100_000),
        ("package.json", b'{"name": '),
        ("package.json", b"[]"),
        ("package.json", b"[" * 200_000),
        ("composer.json", b"\xff\xfe"),
        ("go.mod", b"nothing"),
        ("Cargo.toml", b"\x00"),
    ],
)
async def test_a_malformed_manifest_is_told_of_and_stops_nothing(
    project: Fill, detect: Call, name: str, content: bytes
) -> None:
    project({name: content, "Makefile": "test:\n"})
    seen = await detect()
    assert "test: make test" in said(seen, "commands")
    assert seen.metadata["warnings"][0].startswith(f"{name} is malformed")


@pytest.mark.parametrize(
    "data",
    [
        {"name": 1, "scripts": [], "workspaces": 3, "dependencies": "x", "bin": [1]},
        {"workspaces": {"packages": [1, None, "a"]}, "scripts": {"test": None}, "main": {}},
    ],
)
async def test_values_of_wrong_types_are_passed_over(project: Fill, detect: Call, data: dict[str, Any]) -> None:
    project({"package.json": json.dumps(data), "pyproject.toml": "project = 1\ntool = [1]\n"})
    assert (await detect()).success


async def test_nothing_of_the_project_is_run(project: Fill, detect: Call, ws: Path) -> None:
    touch = f"import pathlib\npathlib.Path({str(ws / 'ran')!r}).touch()\n"
    project(
        {"setup.py": touch, "noxfile.py": touch, "conftest.py": touch, "Makefile": f"X := $(shell touch {ws}/ran)\n"}
    )
    assert "Python package" in said(await detect(), "kinds")
    assert not (ws / "ran").exists()


async def test_two_hundred_members_and_odd_folders(project: Fill, detect: Call) -> None:
    assert "Nothing in" in (await detect()).output
    project({f"packages/{number:03}/package.json": "{}" for number in range(200)})
    seen = await detect()
    assert len(seen.metadata["members"]) == 40
    assert "- and 160 more" in seen.output


async def test_generated_code_does_not_decide_the_language(project: Fill, detect: Call) -> None:
    project({"a.py": "x = 1\n", "dist/bundle.js": "x" * 9000, "api_pb2.py": "y" * 9000, "lib.min.js": "z" * 9000})
    assert said(await detect(), "languages") == {"Python (1 file, 6 bytes)": ("a.py:1", "likely")}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("package.json", b"{" + b"/*" * 100_000),
        ("pnpm-workspace.yaml", b"\n" * 100_000 + b" " * 50_000 + b"-" * 50_000 + b"/"),
        ("go.mod", b"module m\n" + b" a.a" * 50_000 + b"\n " + b"a." * 100_000),
        ("Makefile", b"test" + b" " * 200_000 + b"test"),
        ("Gemfile", b"\n" * 200_000),
    ],
)
@pytest.mark.timeout(20)
async def test_hostile_manifests_take_no_time(project: Fill, detect: Call, name: str, content: bytes) -> None:
    project({name: content})
    assert (await detect()).success


async def test_secrets_and_what_lies_outside_stay_unread(project: Fill, detect: Call, ws: Path) -> None:
    (ws / "pyproject.toml").symlink_to("../secret")
    project({".env": "TOKEN=1\n", "p/a.py": "x\n"})
    seen = await detect()
    assert seen.metadata["files"] == 1
    assert (await detect(path="..")).error_code == "PATH_OUTSIDE_WORKSPACE"
    assert said(await detect(path="p"), "languages") == {"Python (1 file, 2 bytes)": ("p/a.py:1", "likely")}
