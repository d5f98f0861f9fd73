"""DetectProjectType: which languages, frameworks and commands a project has, each with the line that shows it."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from forge_tools.tools.builtin import PATH, option
from forge_tools.tools.languages import title_of
from forge_tools.tools.project.survey import MAX_LISTED, Claims, ProjectTool, Survey, is_written, section, size_of

TITLES = {
    "languages": "Languages", "kinds": "Kinds", "frameworks": "Frameworks", "package_managers": "Package managers",
    "commands": "Commands", "members": "Members", "entry_points": "Entry points", "ci": "CI", "containers": "Containers",
}  # fmt: skip
"""The sections of claims, in the order of the output."""

_NAMED = {
    "ci": re.compile(
        r"(?:^|/)(?:\.github/workflows/[^/]+\.ya?ml|\.gitlab-ci\.yml|\.circleci/config\.yml|Jenkinsfile|\.travis\.yml|azure-pipelines\.yml)$"
    ),
    "containers": re.compile(
        r"(?:^|/)(?:Dockerfile(?!.*ignore)[^/]*|Containerfile|(?:docker-)?compose[^/]*\.ya?ml|devcontainer\.json)$"
    ),
}
_MAX_MANIFESTS = 400
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_COMMENTS = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?(?:\*/|\Z)|,(?=\s*[}\]])', re.DOTALL)
_TARGET = re.compile(
    r"^(test|tests|check|lint|format|fmt|build|all|install|run|dev|start|serve|docs|clean|bench)[ \t]*:(?!=)",
    re.MULTILINE,
)
_MEMBER = re.compile(r"(?=.*[/*])[\w*@./-]+")
_FRAMEWORKS = {
    "django": "Django", "flask": "Flask", "fastapi": "FastAPI", "starlette": "Starlette", "celery": "Celery",
    "sqlalchemy": "SQLAlchemy", "pydantic": "Pydantic", "pytest": "pytest", "torch": "PyTorch", "tensorflow": "TensorFlow",
    "pandas": "pandas", "streamlit": "Streamlit", "aiohttp": "aiohttp", "typer": "Typer", "click": "Click",
    "react": "React", "next": "Next.js", "vue": "Vue", "nuxt": "Nuxt", "svelte": "Svelte", "@angular/core": "Angular",
    "express": "Express", "fastify": "Fastify", "@nestjs/core": "NestJS", "vite": "Vite", "webpack": "webpack",
    "jest": "Jest", "vitest": "Vitest", "mocha": "Mocha", "electron": "Electron", "typescript": "TypeScript",
    "tokio": "Tokio", "axum": "axum", "actix-web": "Actix Web", "clap": "clap", "bevy": "Bevy",
    "github.com/gin-gonic/gin": "Gin", "github.com/labstack/echo/v4": "Echo", "github.com/spf13/cobra": "Cobra",
    "spring-boot-starter": "Spring Boot", "spring-boot-starter-web": "Spring Boot", "junit-jupiter": "JUnit",
    "rails": "Rails", "sinatra": "Sinatra", "rspec": "RSpec", "laravel/framework": "Laravel",
}  # fmt: skip
_LOCKS = {
    "uv.lock": "uv", "poetry.lock": "Poetry", "pdm.lock": "PDM", "Pipfile.lock": "Pipenv", "package-lock.json": "npm",
    "yarn.lock": "Yarn", "pnpm-lock.yaml": "pnpm", "bun.lock": "Bun", "bun.lockb": "Bun", "Cargo.lock": "Cargo",
    "go.sum": "Go modules", "Gemfile.lock": "Bundler", "composer.lock": "Composer",
}  # fmt: skip
_SIMPLE: dict[str, tuple[str, tuple[str, ...]]] = {
    "pom.xml": ("Maven project", ("build: mvn package", "test: mvn test")),
    "build.gradle": ("Gradle project", ("build: gradle build", "test: gradle test")),
    "build.gradle.kts": ("Gradle project", ("build: gradle build", "test: gradle test")),
    "CMakeLists.txt": ("CMake project", ("build: cmake -B build && cmake --build build",)),
    "mix.exs": ("Elixir project", ("test: mix test",)),
    "Package.swift": ("Swift package", ("build: swift build", "test: swift test")),
    "pubspec.yaml": ("Dart package", ("test: dart test",)),
    "Gemfile": ("Ruby project", ()),
    "composer.json": ("PHP package", ()),
    "setup.py": ("Python package", ()),
    "setup.cfg": ("Python package", ()),
    "tox.ini": ("Python project", ("test: tox",)),
    "noxfile.py": ("Python project", ("test: nox",)),
}
_PYTHON_TOOLS = {
    "pytest": "test: pytest", "ruff": "lint: ruff check .", "mypy": "lint: mypy .", "black": "format: black .",
    "pyright": "lint: pyright", "tox": "test: tox",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    path: str = option("Folder of the project, by default the working directory.", ".", **PATH)


class DetectProjectType(ProjectTool):
    """Report which languages, kinds, frameworks, package managers, commands and members a project has, with evidence.

    Nothing of the project is run.
    """

    name = "DetectProjectType"
    aliases = ("detect_project_type",)
    options = _Wish

    def _described(self, survey: Survey, wish: _Wish, max_chars: int) -> tuple[str, dict[str, Any]]:
        claims = claims_of(survey)
        lines = [line for key, title in TITLES.items() for line in section(title, claims.of(key))]
        lines += section("Not understood", survey.notes)
        size = size_of(sum(survey.files.values()), len(survey.files))
        text = "\n".join(lines) or f"Nothing in {survey.name} shows what kind of project it is ({size})"
        return text, {key: [one._asdict() for one in claims.of(key)[:MAX_LISTED]] for key in TITLES}


def claims_of(survey: Survey) -> Claims:
    claims = read_manifests(survey)
    sizes, files, first = Counter[str](), Counter[str](), dict[str, str]()
    for path, size in survey.files.items():
        language = title_of(path)
        if language is not None and is_written(path):
            sizes[language] += size
            files[language] += 1
            first.setdefault(language, path)
        for key, pattern in _NAMED.items():
            if pattern.search(path):
                claims.add(key, path, f"{survey.shown(path)}:1")
    for language, size in sorted(sizes.items(), key=lambda one: (-one[1], one[0])):
        what = f"{language} ({size_of(size, files[language])})"
        claims.add("languages", what, f"{survey.shown(first[language])}:1", "likely")
    return claims


def read_manifests(survey: Survey) -> Claims:
    """Read every manifest, those nearest to the top first; a malformed one adds a note to the survey."""
    claims = Claims()
    paths = sorted(filter(_is_manifest, survey.files), key=lambda path: path.count("/"))
    if len(paths) > _MAX_MANIFESTS:
        survey.notes.append(f"{len(paths):,} manifests, of which only {_MAX_MANIFESTS} were read; pass a path inside")
    for path in paths[:_MAX_MANIFESTS]:
        name, above = path.rpartition("/")[2], path.rpartition("/")[0]
        reader = _READERS.get(name, _requirements if name.startswith("requirements") else _other)
        try:
            if name in _READERS and survey.files[path] and not survey.text(path):
                raise ValueError("it is not text")
            reader(survey, path, claims)
        except (ValueError, RecursionError) as error:
            survey.malformed(path, error)
        if above and name in _OF_MEMBERS:
            claims.add("members", above, f"{survey.shown(path)}:1", "likely")
    return claims


def _is_manifest(path: str) -> bool:
    name = path.rpartition("/")[2]
    is_listed = name in _READERS or name in _SIMPLE or name in _LOCKS or name.endswith(".csproj")
    return is_listed or (name.startswith("requirements") and name.endswith(".txt"))


def _pyproject(survey: Survey, path: str, claims: Claims) -> None:
    data = tomllib.loads(survey.text(path))
    project, tools = _table(data, "project"), _table(data, "tool")
    poetry = _table(tools, "poetry")
    if project or poetry:
        claims.add("kinds", "Python package", survey.at(path, "[project]" if project else "[tool.poetry]"))
    for name in ("poetry", "pdm", "uv", "hatch"):
        if name in tools:
            claims.add("package_managers", name, survey.at(path, f"tool.{name}"))
    if isinstance(backend := _table(data, "build-system").get("build-backend"), str):
        claims.add("package_managers", f"built by {backend}", survey.at(path, "build-backend"))
    groups = [("dependencies", project.get("dependencies"))]
    groups += [("optional-dependencies", one) for one in _table(project, "optional-dependencies").values()]
    groups += [("dependency-groups", one) for one in _table(data, "dependency-groups").values()]
    for after, group in groups:
        for name in _names(group):
            _depend(survey, path, claims, name, after)
    for name in _table(poetry, "dependencies"):
        _depend(survey, path, claims, name, "poetry.dependencies")
    _python_commands(survey, path, claims, {**_table(project, "scripts"), **_table(poetry, "scripts")}, tools)


def _python_commands(survey: Survey, path: str, claims: Claims, scripts: dict[str, Any], tools: dict[str, Any]) -> None:
    for name, target in scripts.items():
        claims.add("entry_points", f"{name} = {target}", survey.at(path, name, "scripts]"))
    for name, command in _PYTHON_TOOLS.items():
        if name in tools and "/" not in path:
            claims.add("commands", command, survey.at(path, f"tool.{name}"), "likely")


def _package_json(survey: Survey, path: str, claims: Claims) -> None:
    data = _json(survey.text(path))
    claims.add("kinds", "Node package", survey.at(path, "name"))
    for table in ("dependencies", "devDependencies", "peerDependencies"):
        for name in _table(data, table):
            _depend(survey, path, claims, name, f'"{table}"')
    for name, command in _table(data, "scripts").items() if "/" not in path else ():
        claims.add("commands", f"{name}: npm run {name} ({command})", survey.at(path, name, '"scripts"'))
    spaces = data.get("workspaces")
    for member in _names(spaces.get("packages") if isinstance(spaces, dict) else spaces, whole=True):
        claims.add("members", member, survey.at(path, member, '"workspaces"'))
    if isinstance(manager := data.get("packageManager"), str):
        claims.add("package_managers", manager, survey.at(path, "packageManager"))
    for key in ("main", "module", "bin"):
        value = data.get(key)
        for target in [value] if isinstance(value, str) else _table(data, key).values():
            claims.add("entry_points", f"{key}: {target}", survey.at(path, key))


def _cargo(survey: Survey, path: str, claims: Claims) -> None:
    data = tomllib.loads(survey.text(path))
    claims.add("kinds", "Rust crate" if "package" in data else "Rust workspace", survey.at(path, next(iter(data), "")))
    for member in _names(_table(data, "workspace").get("members"), whole=True):
        claims.add("members", member, survey.at(path, member))
    for table in ("dependencies", "dev-dependencies"):
        for name in _table(data, table):
            _depend(survey, path, claims, name, f"[{table}")
    for what in ("build", "test") if "/" not in path else ():
        claims.add("commands", f"{what}: cargo {what}", f"{survey.shown(path)}:1", "likely")


def _go_mod(survey: Survey, path: str, claims: Claims) -> None:
    text = survey.text(path)
    if (found := re.search(r"^module\s+(\S+)", text, re.MULTILINE)) is None:
        raise ValueError("it names no module")
    claims.add("kinds", f"Go module {found[1]}", survey.line(path, found.start()))
    for one in re.finditer(r"^(?:require)?[ \t]+([\w.-]{1,100}\.[\w.-]{1,100}/\S{1,200}) v", text, re.MULTILINE):
        _depend(survey, path, claims, one[1])
    for what in ("build", "test") if "/" not in path else ():
        claims.add("commands", f"{what}: go {what} ./...", f"{survey.shown(path)}:1", "likely")


def _listed_members(survey: Survey, path: str, claims: Claims) -> None:
    """Read `go.work` or `pnpm-workspace.yaml`: each line has a folder or a glob for folders."""
    for number, line in enumerate(survey.text(path).splitlines(), 1):
        name = line.strip().removeprefix("use ").lstrip("- ").strip("'\"")
        if _MEMBER.fullmatch(name):
            claims.add("members", name, f"{survey.shown(path)}:{number}")


def _makefile(survey: Survey, path: str, claims: Claims) -> None:
    for found in _TARGET.finditer(survey.text(path)) if "/" not in path else ():
        claims.add("commands", f"{found[1]}: make {found[1]}", survey.line(path, found.start()))


def _requirements(survey: Survey, path: str, claims: Claims) -> None:
    claims.add("kinds", "Python project", f"{survey.shown(path)}:1", "likely")
    for line in survey.text(path).splitlines():
        if found := _NAME.match(line.strip()):
            _depend(survey, path, claims, found[0])


def _other(survey: Survey, path: str, claims: Claims) -> None:
    """Read a file whose name says most of it: a lock file, or a manifest that is not parsed."""
    name, first = path.rpartition("/")[2], f"{survey.shown(path)}:1"
    if name in _LOCKS:
        claims.add("package_managers", _LOCKS[name], first)
        return
    kind, commands = _SIMPLE.get(name, (".NET project", ("build: dotnet build", "test: dotnet test")))
    claims.add("kinds", kind, first, "likely")
    for command in commands if "/" not in path else ():
        claims.add("commands", command, first, "likely")
    if name == "composer.json":
        for dependency in _table(_json(survey.text(path)), "require"):
            _depend(survey, path, claims, dependency)
    for found in re.finditer(r"^[ \t]*gem ['\"]([\w-]+)|<artifactId>([\w.-]+)<", survey.text(path), re.MULTILINE):
        _depend(survey, path, claims, found[1] or found[2])


def _depend(survey: Survey, path: str, claims: Claims, name: str, after: str = "") -> None:
    evidence = survey.at(path, name, after)
    claims.add("dependencies", name, evidence)
    if (framework := _FRAMEWORKS.get(name.lower())) is not None:
        claims.add("frameworks", framework, evidence)


def _json(text: str) -> dict[str, Any]:
    """Parse JSON; comments and trailing commas are allowed."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        data = json.loads(_COMMENTS.sub(lambda found: found[1] or "", text))
    if not isinstance(data, dict):
        raise json.JSONDecodeError("it is not an object", text, 0)
    return data


def _table(data: Any, key: str) -> dict[str, Any]:
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _names(values: Any, *, whole: bool = False) -> Iterator[str]:
    """Yield the strings in a list: whole, or only the package name that a requirement begins with."""
    for value in values if isinstance(values, list) else ():
        if isinstance(value, str) and (found := _NAME.match(value) if not whole else value):
            yield found if isinstance(found, str) else found[0]


_READERS: dict[str, Callable[[Survey, str, Claims], None]] = {
    "pyproject.toml": _pyproject,
    "package.json": _package_json,
    "Cargo.toml": _cargo,
    "go.mod": _go_mod,
    "go.work": _listed_members,
    "pnpm-workspace.yaml": _listed_members,
    "Makefile": _makefile,
}
_OF_MEMBERS = {"pyproject.toml", "package.json", "Cargo.toml", "go.mod", "pom.xml", "build.gradle", "setup.py"}
