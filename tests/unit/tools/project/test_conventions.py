"""ExtractConventions: declared ones come first, observed ones have a ratio, an example and a counter-example."""

from collections.abc import Awaitable, Callable

import pytest

from forge_tools.model import ToolResult
from forge_tools.tools.project.conventions import case_of

Call = Callable[..., Awaitable[ToolResult]]
Fill = Callable[[dict[str, str | bytes]], None]

MODULE = '''"""M."""
import os
from .other import thing

LIMIT = 3


class FooBar:
    def do_it(self):
        """Do.

        Args:
            x: X.
        """
        try:
            return "text"
        except ValueError:
            return "other"
'''


async def test_what_is_seen_has_its_ratio_and_examples(project: Fill, conventions: Call) -> None:
    project({f"pack/some_mod{number:02}.py": MODULE for number in range(24)})
    project({"pack/oddOne.py": "def camelCase():\n\treturn 'x'\n"})
    seen = (await conventions()).metadata
    found = {name: facts["found"] for name, facts in seen["observed"].items()}
    assert found == {
        "file names": "snake_case", "final newline": "yes", "imports": "mixed", "constants": "UPPER_CASE",
        "class names": "PascalCase", "function names": "snake_case", "indentation": "4 spaces", "quotes": "double",
        "docstring style": "Google", "error handling": "specific exceptions",
    }  # fmt: skip
    names = seen["observed"]["function names"]
    assert (names["samples"], names["ratio"], names["counter_example"]) == (25, 0.96, "pack/oddOne.py:1")
    assert names["evidence"].endswith(".py:9")
    assert (seen["language"], seen["sampled"], seen["line_length"]["p95"]) == ("Python", 25, 26)


async def test_little_is_no_evidence_and_a_half_is_no_majority(project: Fill, conventions: Call) -> None:
    project({"a.py": "x = 'a'\n" * 19})
    assert (await conventions()).metadata["observed"]["quotes"]["found"] == "insufficient evidence"
    project({"a.py": "x = 'a'\ny = \"b\"\n" * 20})
    quotes = (await conventions()).metadata["observed"]["quotes"]
    assert (quotes["found"], quotes["ratio"], quotes["evidence"], quotes["counter_example"]) == (
        "mixed", 0.5, "a.py:2", "a.py:1",
    )  # fmt: skip


async def test_an_empty_or_very_long_file_says_nothing_about_its_last_line(project: Fill, conventions: Call) -> None:
    project({f"{number}/__init__.py": "" for number in range(30)})
    project({f"big{number}.py": "x = 1\n" * 50_000 for number in range(2)})
    project({f"mod{number:02}.py": "x = 1\n" for number in range(20)})
    final = (await conventions()).metadata["observed"]["final newline"]
    assert (final["found"], final["samples"], final["counts"]) == ("yes", 20, {"yes": 20})


async def test_settings_are_told_with_their_lines(project: Fill, conventions: Call) -> None:
    project({
        ".editorconfig": "root = true\n[*]\nindent_style = tab\nend_of_line=lf\n",
        "pyproject.toml": '[tool.other]\nline-length = 1\n[tool.ruff]\nline-length = 120\n[project]\nstrict = "no"\n',
        ".prettierrc": '{\n  "singleQuote": true,\n  "printWidth": 90\n}\n',
        "eslint.config.js": "export default []\n",
        "a.ts": "const aB = () => 1\n",
    })  # fmt: skip
    declared = {one["what"]: one["evidence"] for one in (await conventions()).metadata["declared"]}
    assert declared == {
        ".editorconfig: indent_style = tab": ".editorconfig:3",
        ".editorconfig: end_of_line = lf": ".editorconfig:4",
        ".prettierrc: singleQuote = true": ".prettierrc:2",
        ".prettierrc: printWidth = 90": ".prettierrc:3",
        "eslint.config.js has settings": "eslint.config.js:1",
        "pyproject.toml: line-length = 120": "pyproject.toml:4",
    }


async def test_the_sample_is_the_same_each_time_and_bounded(project: Fill, conventions: Call) -> None:
    project({f"m{number}.py": f"x{number} = 1\n" for number in range(50)})
    first, second = await conventions(sample=5), await conventions(sample=5)
    assert first.output == second.output
    assert first.metadata["sampled"] == 5


async def test_the_language_is_asked_for_or_the_usual_one(project: Fill, conventions: Call) -> None:
    project({"a.py": "x\n", "b.py": "y\n", "c.go": "func DoIt() {}\n"})
    assert (await conventions()).metadata["language"] == "Python"
    assert "function names" in (await conventions(language="go")).metadata["observed"]
    refused = await conventions(language="pyton")
    assert refused.error_code == "VALIDATION_ERROR"
    assert "python" in (refused.error or "")


@pytest.mark.timeout(20)
async def test_odd_sources_are_no_trouble(project: Fill, conventions: Call) -> None:
    assert "insufficient evidence" in (await conventions()).output
    project({
        "long.py": b"x = '" + b"a" * 5_000_000, "nul.py": b"\0" * 90, "latin.py": b"# caf\xe9\n", "mark.py": b"\xef\xbb\xbfx\r\n",
        ".editorconfig": b"indent_style = " + b" " * 200_000 + b"x\n" + b"\n" * 200_000,
    })  # fmt: skip
    assert (await conventions()).success


@pytest.mark.parametrize(
    ("name", "way"),
    [("a_b", "snake_case"), ("aB", "camelCase"), ("AB", "UPPER_CASE"), ("Ab", "PascalCase"), ("a-b", "kebab-case"),
     ("word", None), ("_", None), ("A_b", "other"), ("__init__", None), ("A", "PascalCase")],
)  # fmt: skip
def test_names_have_a_case(name: str, way: str | None) -> None:
    assert case_of(name) == way
