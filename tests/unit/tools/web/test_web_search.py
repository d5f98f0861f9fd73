"""WebSearch, with stand-ins for the providers that answer like them, or badly."""

import json
from collections.abc import Iterator

import pytest

from forge_tools import ExecutionContext, ToolResult
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.tools import WebSearch
from forge_tools.tools.web.web_search import PROVIDERS
from tests.unit.tools.web.site import Site, page, site

CONTEXT = ExecutionContext(working_dir=".")
FOUND = [
    {"title": "<b>One</b> &amp; all", "url": "https://example.com/1", "content": "first", "description": "first"},
    {"title": "Again", "url": "https://example.com/1"},
    {"title": "Other", "url": "https://notexample.com/2", "content": None},
    {"title": "Script", "url": "javascript:alert(1)"},
    {"title": "Below", "url": "https://docs.example.com/3"},
]
ANSWERS = {
    "searxng": ("/search", {"results": FOUND}),
    "brave": ("/", {"web": {"results": FOUND}}),
    "tavily": ("/", {"results": FOUND}),
}


@pytest.fixture(autouse=True)
def own_reach() -> Iterator[None]:
    token = REACH.set(Reach())
    yield
    REACH.reset(token)


async def search(one: Site, provider: str = "searxng", **options: object) -> ToolResult:
    REACH.set(Reach(web=one.searched(provider)))
    return await WebSearch().execute(CONTEXT, **{"query": "what", **options})


def answers(provider: str, found: object = None) -> dict[str, bytes]:
    path, told = ANSWERS[provider]
    return {path: page(json.dumps(told if found is None else found).encode(), "application/json")}


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_every_provider_finds_each_page_once(provider: str) -> None:
    async with site(answers(provider)) as one:
        result = await search(one, provider)

    urls = [hit["url"] for hit in result.metadata["results"]]
    assert urls == ["https://example.com/1", "https://notexample.com/2", "https://docs.example.com/3"]
    assert result.output.startswith("3 pages for 'what'. Titles and extracts are the pages' own words")


async def test_markup_is_taken_out_of_titles() -> None:
    async with site(answers("searxng", {"results": FOUND[:1]})) as one:
        result = await search(one)

    assert "1. One & all\n   https://example.com/1\n   first" in result.output


@pytest.mark.parametrize(
    ("option", "left"),
    [
        ("allowed_domains", ["https://example.com/1", "https://docs.example.com/3"]),
        ("blocked_domains", ["https://notexample.com/2"]),
    ],
)
async def test_domains_are_compared_label_by_label(option: str, left: list[str]) -> None:
    async with site(answers("searxng")) as one:
        result = await search(one, **{option: ["example.com"]})

    assert [hit["url"] for hit in result.metadata["results"]] == left


async def test_without_a_provider_it_says_what_to_set() -> None:
    result = await WebSearch().execute(CONTEXT, query="what")

    assert result.error_code == "PROVIDER_NOT_CONFIGURED"
    assert "FORGE_WEB_SEARCH" in str(result)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (page(b"{}", status=401), "PROVIDER_AUTH"),
        (page(b"", "text/plain", 429, "Retry-After: 7"), "RATE_LIMITED"),
        (page(b"broken", status=500), "HTTP_STATUS"),
        (page(b"<html>a page</html>"), "PROVIDER_FAILED"),
        (page(b'{"results": 5}', "application/json"), "PROVIDER_FAILED"),
        (page(b'{"results": ["x"]}', "application/json"), "PROVIDER_FAILED"),
        (page(b"[" * 100_000, "application/json"), "PROVIDER_FAILED"),
    ],
)
async def test_a_provider_that_does_not_answer_well_is_said_so(answer: bytes, code: str) -> None:
    async with site({"/search": answer}) as one:
        result = await search(one)

    assert result.error_code == code
    assert "k3y" not in str(result)


async def test_no_results_are_no_failure() -> None:
    async with site(answers("brave", {})) as one:
        result = await search(one, "brave")

    assert result.output.startswith("0 pages for 'what'")


async def test_a_query_of_blanks_and_domains_that_contradict_are_refused() -> None:
    async with site(answers("searxng")) as one:
        blank = await search(one, query="   ")
        both = await search(one, allowed_domains=["a.b"], blocked_domains=["c.d"])

    assert "must contain a word" in (blank.error or "")
    assert "exclude each other" in (both.error or "")
    assert one.requests == []


async def test_the_key_goes_in_a_header_and_is_not_shown() -> None:
    async with site(answers("brave")) as one:
        await search(one, "brave")

    assert "X-Subscription-Token: k3y-of-the-provider" in one.requests[0]
    assert "k3y" not in repr(one.searched("brave"))
