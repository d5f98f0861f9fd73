"""What pages must contain, and that what they show can be typed."""

import re
from pathlib import Path

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ErrorCode, SandboxError
from tests import reference

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


LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]+)(?P<place>#[^)\s]+)?\)")
DOCS = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *DOCS, *ROOT.glob("deploy/**/*.md")], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    linked = [page.parent / found["path"] for found in LINK.finditer(page.read_text())]
    assert [target for target in linked if not target.exists()] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_page_says_for_whom_it_is_and_leads_on(page: Path) -> None:
    text = page.read_text()
    assert text.split("\n\n")[1].startswith("For ")
    assert LINK.search(text)


def test_the_index_leads_to_all_pages() -> None:
    listed = {found["path"] for found in LINK.finditer((ROOT / "docs" / "index.md").read_text())}
    assert {page.name for page in DOCS} - {"index.md"} - listed == set()


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", reference.PAGES)
def test_what_is_made_of_the_code_is_current(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == reference.PAGES[page](), "run `python -m tests.reference`"


def test_every_setting_says_what_it_means() -> None:
    said = reference.meanings()
    assert [name for name in Settings.model_fields if not said.get(name)] == []


def test_every_code_has_its_cause_and_cure() -> None:
    assigned = re.compile(
        r"""(?: = |SandboxError\(.*, |error_code=)"(?P<code>(?!FORGE_)[A-Z]+(?:_[A-Z]+)+)"[,)]?(?:  #.*)?$""",
        re.MULTILINE,
    )
    places = ("forge_tools/sandbox", "forge_tools/tools", "forge_tools/mcp/hosted", "forge_tools/errors.py")
    sources = [path for place in places for path in [ROOT / place, *(ROOT / place).rglob("*.py")] if path.is_file()]
    known = {found["code"] for path in sources for found in assigned.finditer(path.read_text())}
    page = (ROOT / "docs" / "errors.md").read_text()
    said = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+|[A-Z]{4,})`", page))
    assert SandboxError.code in known
    assert (known | set(ErrorCode)) - said == set()
