"""ExtractConventions: how a project's code is written, by its settings and by its files."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from math import ceil
from typing import Any

from forge_tools.errors import InvalidCallError
from forge_tools.schema import suggestion
from forge_tools.tools.builtin import PATH, option
from forge_tools.tools.file.text import SAMPLE_BYTES
from forge_tools.tools.languages import TITLES, title_of
from forge_tools.tools.project.survey import Claims, ProjectTool, Survey, is_written, section

_LEAST = 20
_CLEAR = 0.6
_MAX_LINES = 2000
_SETTINGS = re.compile(
    r"(?:^|/)(?:\.editorconfig|pyproject\.toml|\.?ruff\.toml|setup\.cfg|tox\.ini|\.flake8|\.prettierrc[^/]*|\.eslintrc[^/]*|"
    r"eslint\.config\.\w+|biome\.json|tsconfig\.json|\.?rustfmt\.toml|\.clang-format|\.golangci\.ya?ml|\.rubocop\.yml)$"
)
_SETTING = re.compile(
    r"^[ \t]*[\"']?(indent[_-]?style|indent[_-]?size|indent[_-]?width|tab_?width|useTabs|hard_tabs|tab_spaces|max[_-]line[_-]length|"
    r"line[_-]length|printWidth|max_width|quote-style|singleQuote|semi|end[_-]?of[_-]?line|charset|insert_final_newline|"
    r"trim_trailing_whitespace|trailingComma|strict|profile|select|extends|convention|BasedOnStyle|IndentWidth|ColumnLimit)[\"']?"
    r"[ \t]*[:=][ \t]*([^\n]+)$",
    re.MULTILINE | re.IGNORECASE,
)
_TOOL = re.compile(r"^\[tool\.(?:ruff|black|isort|mypy|flake8|pylint|yapf)[^\]]*\]|^\[", re.MULTILINE)
_NAMES = {
    "Python": {"function names": r"^\s*(?:async )?def (\w+)", "class names": r"^\s*class (\w+)", "constants": r"^([A-Za-z]\w*) = [\d\"'(\[]"},
    "Go": {"function names": r"^func (?:\([^)]*\) )?(\w+)", "type names": r"^type (\w+)"},
    "Rust": {"function names": r"^\s*(?:pub(?:\([^)]*\))? )?(?:async )?fn (\w+)", "type names": r"^\s*(?:pub )?(?:struct|enum|trait) (\w+)"},
    "Java": {"function names": r"^\s*(?:public|private|protected)[\w<>\[\], ]* (\w+)\(", "class names": r"\bclass (\w+)"},
    "JavaScript": {"function names": r"\bfunction\*? (\w+)|\bconst (\w+) = (?:async )?\(", "class names": r"\bclass (\w+)"},
}  # fmt: skip
_NAMES["TypeScript"] = _NAMES["JavaScript"] | {"type names": r"^\s*(?:export )?(?:interface|type) (\w+)"}
_PATTERNS = {
    language: {kind: re.compile(pattern) for kind, pattern in kinds.items()} for language, kinds in _NAMES.items()
}
_STRING = re.compile(r"""(?<![\w"'\\])(?:"(?!"")([^"'\\\n]+)"|'(?!'')([^"'\\\n]+)')""")
_IDIOMS = {
    "docstring style": {
        "Google": re.compile(r"^\s+(?:Args|Returns|Raises):$"), "NumPy": re.compile(r"^\s+-{5,}$"),
        "reST": re.compile(r"^\s+:(?:param|returns?|raises)\b"), "JSDoc": re.compile(r"^\s*\*\s*@(?:param|returns?)\b"),
    },
    "error handling": {
        "bare except": re.compile(r"^\s*except\s*:"), "except Exception": re.compile(r"^\s*except \(?(?:Base)?Exception\b"),
        "specific exceptions": re.compile(r"^\s*except \(?(?!(?:Base)?Exception\b)\w"), "err != nil": re.compile(r"\berr != nil\b"),
        "try/catch": re.compile(r"\bcatch\s*[({]"), "promise catch": re.compile(r"\.catch\("),
    },
    "imports": {
        "relative": re.compile(r"^from \.|^import .*from ['\"]\.|require\(['\"]\."),
        "absolute": re.compile(r"^from \w|^import [\w.]+(?:,| as|$)|^import .*from ['\"][^.'\"]|require\(['\"][^.'\"]"),
    },
}  # fmt: skip
_TESTS = {
    "test_*.py": re.compile(r"(?:^|/)test_\w+\.py$"), "*_test.*": re.compile(r"_test\.\w+$"),
    "*.test.*": re.compile(r"\.test\.\w+$"), "*.spec.*": re.compile(r"\.spec\.\w+$"), "*Test.*": re.compile(r"[a-z]Tests?\.\w+$"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    path: str = option("Folder of the project, by default the working directory.", ".", **PATH)
    language: str | None = option(
        "Language to look at, such as Python; by default the one with the most files.", None, max_length=32
    )
    sample: int = option("Number of files to look at; the same ones on every host.", 200, minimum=1, maximum=2000)


@dataclass(slots=True)
class _Tally:
    """How often each variant of a convention was seen, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, way: str, where: str) -> None:
        self.counts[way] += 1
        self.first.setdefault(way, where)

    def facts(self) -> dict[str, Any]:
        total = self.counts.total()
        (way, count), *others = sorted(self.counts.items(), key=lambda one: (-one[1], one[0]))
        found = way if count / total >= _CLEAR else "mixed"
        facts = {
            "found": found if total >= _LEAST else "insufficient evidence",
            "samples": total,
            "counts": dict(self.counts),
            "ratio": round(count / total, 2),
            "evidence": self.first[way],
            "confidence": "guess" if total < _LEAST else "certain" if count == total else "likely",
        }
        return facts | ({"counter_example": self.first[others[0][0]]} if others else {})


class ExtractConventions(ProjectTool):
    """Report how a project's code is written: first what its settings declare, then what a sample of its files shows.

    Each convention has a ratio, an example and a counter-example; fewer than 20 samples are insufficient evidence.
    """

    name = "ExtractConventions"
    aliases = ("extract_conventions",)
    options = _Wish

    def _described(self, survey: Survey, wish: _Wish, max_chars: int) -> tuple[str, dict[str, Any]]:
        language = _language(survey, wish.language)
        paths = [path for path in survey.files if title_of(path) == language and is_written(path)] if language else []
        # By hash: a sample across all folders, and the same one on every host.
        sample = sorted(paths, key=lambda path: (blake2b(path.encode("utf-8", "surrogateescape")).digest(), path))
        tallies, lengths, looked = defaultdict[str, _Tally](_Tally), Counter[int](), 0
        for path in sample[: wish.sample]:
            if survey.deadline.is_over:
                survey.is_partial = True
                break
            looked += 1
            is_whole = survey.files[path] <= SAMPLE_BYTES  # of a longer file only the beginning is read
            for convention, way, line in _seen(survey.text(path), path, language or "", lengths, is_whole=is_whole):
                tallies[convention].add(way, f"{survey.shown(path)}:{line}")
        for path in paths:
            for way in [name for name, pattern in _TESTS.items() if pattern.search(path)][:1]:
                tallies["test file names"].add(way, f"{survey.shown(path)}:1")
        declared, observed = declared_in(survey).of("settings"), {key: tally.facts() for key, tally in tallies.items()}
        lines = section("Declared", declared) + section(f"Observed in {language}", map(_told, observed.items()))
        lines += section("Not understood", survey.notes)
        facts: dict[str, Any] = {
            "language": language,
            "sampled": looked,
            "declared": [one._asdict() for one in declared],
            "observed": observed,
        }
        if lengths.total():
            ordered = sorted(lengths)
            at = bisect_left([*accumulate(lengths[one] for one in ordered)], ceil(0.95 * lengths.total()))
            facts["line_length"] = {"p95": ordered[at], "max": ordered[-1]}
            lines.append(f"Line length: p95 {facts['line_length']['p95']}, longest {facts['line_length']['max']}")
        return "\n".join(lines) or "insufficient evidence: no source files", facts


def declared_in(survey: Survey) -> Claims:
    """Return the conventions that the settings of formatters and linters declare."""
    claims = Claims()
    for path in filter(_SETTINGS.search, survey.files):
        text, before = survey.text(path), len(claims.sections.get("settings", {}))
        is_shared = path.endswith("pyproject.toml")
        for found in _SETTING.finditer(text):
            tables = [one[0] for one in _TOOL.finditer(text, 0, found.start())] if is_shared else ["[tool."]
            if tables and tables[-1].startswith("[tool."):
                what = f"{survey.shown(path)}: {found[1]} = {found[2].rstrip(', ')}"
                claims.add("settings", what, survey.line(path, found.start(1)))
        if not is_shared and len(claims.sections.get("settings", {})) == before:
            claims.add("settings", f"{survey.shown(path)} has settings", f"{survey.shown(path)}:1", "likely")
    return claims


def _language(survey: Survey, asked: str | None) -> str | None:
    if asked is not None:
        known = {name.lower(): name for name in TITLES}
        if asked.lower() not in known:
            raise InvalidCallError(f"Unknown language {asked!r}{suggestion(asked.lower(), known)}")
        return known[asked.lower()]
    counts = Counter(title_of(path) for path in survey.files if is_written(path))
    return min((name for name in counts if name in _NAMES), key=lambda name: (-counts[name], name or ""), default=None)


def _seen(
    text: str, path: str, language: str, lengths: Counter[int], *, is_whole: bool
) -> Iterator[tuple[str, str, int]]:
    """Yield each observation: the convention, its variant and the line."""
    lines, indent = text.split("\n"), 0
    if way := case_of(path.rpartition("/")[2].partition(".")[0]):
        yield "file names", way, 1
    if text and is_whole:
        yield "final newline", "yes" if text.endswith("\n") else "no", len(lines)
    for number, line in enumerate(lines[:_MAX_LINES], 1):
        if not line.strip():
            continue
        lengths[len(line)] += 1
        blanks = line[: len(line) - len(line.lstrip())]
        if "\t" in blanks or 0 < len(blanks) - indent in (2, 4, 8):
            yield "indentation", "tabs" if "\t" in blanks else f"{len(blanks) - indent} spaces", number
        indent = len(blanks)
        for found in _STRING.finditer(line[:1000]):
            yield "quotes", "double" if found[1] else "single", number
        yield from ((key, way, number) for key, way in _named(line[:1000], language))


def _named(line: str, language: str) -> Iterator[tuple[str, str]]:
    for kind, pattern in _PATTERNS.get(language, {}).items():
        if (found := pattern.search(line)) and (way := case_of(next(filter(None, found.groups())))):
            yield kind, way
    for idiom, ways in _IDIOMS.items():
        yield from ((idiom, way) for way, pattern in ways.items() if pattern.search(line))


def case_of(name: str) -> str | None:
    """Return the case of a name, such as snake_case; None for a single lower-case word, which could be any."""
    name = name.strip("_")
    if re.fullmatch(r"[a-z0-9]*", name):
        return None
    ways = {
        "snake_case": r"[a-z0-9_]+", "UPPER_CASE": r"[A-Z0-9_]{2,}", "kebab-case": r"[a-z0-9-]+",
        "PascalCase": r"[A-Z][A-Za-z0-9]*", "camelCase": r"[a-z][A-Za-z0-9]*",
    }  # fmt: skip
    return next((way for way, pattern in ways.items() if re.fullmatch(pattern, name)), "other")


def _told(one: tuple[str, dict[str, Any]]) -> str:
    name, facts = one
    against = f"; against: {facts['counter_example']}" if "counter_example" in facts else ""
    share = f"{facts['ratio']:.0%} of {facts['samples']:,}"
    return f"{name}: {facts['found']} ({share}) [{facts['evidence']}; {facts['confidence']}{against}]"
