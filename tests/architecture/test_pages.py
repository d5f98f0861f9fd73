"""What pages have to say, and that what they show can be typed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_downgrade_that_a_page_shows_can_be_typed_as_it_stands() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")]
    shown = [line for page in pages for line in re.findall(r"`[^`\n]*db downgrade [^`\n]+`", page.read_text())]
    assert shown
    assert [line for line in shown if "--yes" not in line] == []


@pytest.mark.parametrize(("page", "key"), [("audit", "audit.key"), ("secrets", "keys")])
def test_a_page_that_promises_by_a_key_first_says_that_tools_of_the_embedded_stack_can_read_it(
    page: str, key: str
) -> None:
    _, said, _ = re.split(r"\n\n|\n```", (ROOT / "docs" / f"{page}.md").read_text(), maxsplit=2)
    assert {"`Bash`", f"`{key}`"} <= set(re.findall(r"`[^`]+`", said))
    assert "embedded stack" in said


def test_every_requirement_that_code_or_a_page_cites_can_be_looked_up() -> None:
    listed = set(
        re.findall(r"^(?:- \*\*|\| )(S\d-\d+|C\d\d)\b", (ROOT / "docs" / "requirements.md").read_text(), re.MULTILINE)
    )
    sources = [path for folder in ("docs", "forge_tools", "workers") for path in (ROOT / folder).glob("**/*.[mp][dy]")]
    cited = {number for path in sources for number in re.findall(r"\b(?:S\d-\d{2,3}|C\d\d)\b", path.read_text())}
    assert cited
    assert cited - listed == set()
