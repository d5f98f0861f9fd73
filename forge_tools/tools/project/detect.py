"""DetectProjectType: which languages, frameworks and commands a project has, each with the line that shows it."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.tools.builtin import PATH, option, parameters_of
from forge_tools.tools.languages import title_of
from forge_tools.tools.project.manifests import read_manifests
from forge_tools.tools.project.survey import (
    MAX_LISTED,
    Claims,
    ProjectTool,
    Survey,
    is_written,
    section,
    size_of,
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Where the project is."""

    path: str = option("Folder of the project, by default the working directory.", ".", **PATH)


class DetectProjectType(ProjectTool):
    """Report which languages, kinds, frameworks, package managers, commands and members a project has, with evidence.

    Nothing of the project is run.
    """

    name = "DetectProjectType"
    aliases = ("detect_project_type",)
    parameters = parameters_of(Wish)

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        return await self._surveyed(context, Wish(**options).path, _answer)


def _answer(survey: Survey) -> ToolResult:
    claims = claims_of(survey)
    lines = [line for key, title in TITLES.items() for line in section(title, claims.of(key))]
    lines += section("Not understood", survey.notes)
    facts = {key: [one.facts() for one in claims.of(key)[:MAX_LISTED]] for key in TITLES}
    text = "\n".join(lines) or f"Nothing in {survey.name} shows what kind of project it is ({_size(survey)})"
    return ToolResult.ok(text, **facts, **facts_of(survey))


def claims_of(survey: Survey) -> Claims:
    """Return all claims that a project's files support about its type."""
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


def facts_of(survey: Survey) -> dict[str, Any]:
    """Return the metadata that every answer about a project has."""
    facts: dict[str, Any] = {"files": len(survey.files), "bytes": sum(survey.files.values())}
    facts |= {"warnings": survey.notes[:20]} if survey.notes else {}
    return facts | ({"partial": True} if survey.is_partial else {})


def _size(survey: Survey) -> str:
    return size_of(sum(survey.files.values()), len(survey.files))
