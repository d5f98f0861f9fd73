"""Pages of an artifact: together they are all of it, and none reads parts that it does not show."""

import random
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tools.artifacts.parts import PART_BYTES
from forge_tools.artifacts.reader import Pages
from forge_tools.errors import InvalidCallError
from forge_tools.model import PageWish
from forge_tools.model.artifacts import Artifact, ArtifactPage
from tests.waiting import within

LINES = [f"{number:07} é{'-' * (number % 90 * 5)}\n".encode() for number in range(30_000)]
TEXT = b"".join(LINES)


@dataclass
class Kept:
    """Bytes in parts, and which of these were read."""

    data: bytes
    is_counted: bool = True
    read: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._artifact = Artifact(id=blake2b(self.data, digest_size=16).hexdigest(), size=len(self.data))
        self._chunks = [self.data[start : start + PART_BYTES] for start in range(0, len(self.data), PART_BYTES)]
        self._breaks = [chunk.count(b"\n") if self.is_counted else None for chunk in self._chunks]

    async def page(self, **wish: Any) -> ArtifactPage:
        self.read.clear()
        return await Pages(self._artifact, self._breaks, self._chunk).read(PageWish(**wish))

    async def _chunk(self, number: int) -> bytes:
        self.read.append(number)
        return self._chunks[number]

    async def pages(self, **wish: Any) -> list[ArtifactPage]:
        """All of them, each begun where the one before says."""
        first = await self.page(**wish)
        found, following = [first], first.next
        limits = {name: value for name, value in wish.items() if name in ("limit", "max_bytes")}
        time_left = within(60, "the pages do not end")
        while following is not None and next(time_left):
            found.append(await self.page(**limits, **following))
            assert len(found[-1].data) > 0
            following = found[-1].next
        return found


@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("wish", [{}, {"limit": 1999}, {"max_bytes": 99_999}, {"byte": 0, "max_bytes": 100_001}])
async def test_pages_together_are_all_of_it(is_counted: bool, wish: dict[str, int]) -> None:
    found = await Kept(TEXT, is_counted).pages(**wish)
    assert len(found) > 5
    assert b"".join(page.data for page in found) == TEXT
    assert "\ufffd" not in "".join(page.text for page in found), "no character is cut"


@given(data=st.binary(max_size=300), limit=st.integers(1, 5), room=st.integers(1, 40), by_byte=st.booleans())
@settings(max_examples=200)
async def test_any_bytes_are_paged_without_loss(data: bytes, limit: int, room: int, by_byte: bool) -> None:
    start = {"byte": 0} if by_byte else {"offset": 1, "limit": limit}
    found = await Kept(data).pages(**start, max_bytes=room)
    assert b"".join(page.data for page in found) == data
    assert all(len(page.data) <= room for page in found)


@pytest.mark.parametrize("is_counted", [True, False])
async def test_a_page_of_lines_holds_those_lines(is_counted: bool) -> None:
    kept = Kept(TEXT, is_counted)
    for offset, limit in ((1, 1), (2, 3), (12_345, 100), (29_999, 2), (30_000, 5)):
        page = await kept.page(offset=offset, limit=limit)
        assert page.data == b"".join(LINES[offset - 1 : offset - 1 + limit])
        assert page.first_line == offset
        assert page.lines == min(limit, 30_001 - offset)
        assert TEXT[page.start : page.end] == page.data
        assert page.next == (None if page.end == len(TEXT) else {"offset": offset + limit})


async def test_a_page_reads_the_parts_that_it_lies_in_and_no_others() -> None:
    kept = Kept(TEXT)
    assert len(TEXT) > 6 * PART_BYTES
    page = await kept.page(offset=20_000, limit=10)
    assert set(kept.read) == {page.start // PART_BYTES}
    assert page.start // PART_BYTES >= 3
    await kept.page(byte=5 * PART_BYTES + 7, max_bytes=10)
    assert set(kept.read) == {5}


async def test_a_page_across_two_parts_is_one() -> None:
    whole = await Kept(TEXT).page(byte=PART_BYTES - 10, max_bytes=20)
    assert whole.data == TEXT[PART_BYTES - 10 : PART_BYTES + 10]


@pytest.mark.parametrize("offset", [1, 2, 3])
async def test_a_line_that_ends_with_its_part_is_followed_by_the_next(offset: int) -> None:
    data = b"a" * (PART_BYTES - 1) + b"\n" + b"second\nthird"
    page = await Kept(data).page(offset=offset, limit=1)
    assert page.data == data.splitlines(keepends=True)[offset - 1]


@pytest.mark.parametrize("wish", [{}, {"byte": 0, "max_bytes": PART_BYTES}, {"max_bytes": 3 * PART_BYTES}])
async def test_a_page_as_long_as_its_parts_ends_between_two_characters_too(wish: dict[str, int]) -> None:
    found = await Kept(b"x" + "é".encode() * 800_000).pages(**wish)
    assert "\ufffd" not in "".join(page.text for page in found)


@pytest.mark.parametrize("room", [PART_BYTES, 4 * PART_BYTES])
async def test_a_page_as_long_as_its_parts_ends_between_two_lines_too(room: int) -> None:
    lines = b"".join(b"-" * 999 + b"\n" for _ in range(2000))
    found = await Kept(lines).pages(max_bytes=room)
    assert all(page.data.endswith(b"\n") for page in found)
    assert [page.first_line for page in found] == [1 + page.start // 1000 for page in found]


async def test_more_lines_than_anything_has_are_all_lines() -> None:
    assert (await Kept(b"a\nb").page(limit=10**30)).data == b"a\nb"


async def test_a_line_that_is_too_long_for_a_page_is_gone_on_with_by_byte() -> None:
    kept = Kept("é".encode() * 600_000 + b"\nend")
    first = await kept.page(offset=1, max_bytes=99_999)
    assert (first.data, first.next) == ("é".encode() * 49_999, {"byte": 99_998})
    [*_, last] = await kept.pages(offset=1, max_bytes=99_999)
    assert last.text.endswith("é\nend")


async def test_a_page_by_byte_says_its_line_where_lines_were_counted() -> None:
    start = TEXT.index(LINES[20_000]) + 3
    assert (await Kept(TEXT).page(byte=start, max_bytes=5)).first_line == 20_001
    assert (await Kept(TEXT, is_counted=False).page(byte=start, max_bytes=5)).first_line is None


async def test_of_nothing_there_is_one_page() -> None:
    page = await Kept(b"").page()
    assert (page.data, page.next, page.lines, page.end) == (b"", None, 0, 0)


@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("wish", [{"offset": 30_001}, {"offset": 10**30}, {"byte": len(TEXT)}, {"byte": 10**30}])
async def test_what_lies_past_the_end_is_refused(is_counted: bool, wish: dict[str, int]) -> None:
    with pytest.raises(InvalidCallError, match="is past the end of artifact://"):
        await Kept(TEXT, is_counted).page(**wish)


@pytest.mark.parametrize(
    ("wish", "problem"),
    [
        ({"offset": 0}, "offset 0 must be at least 1"),
        ({"byte": -1}, "byte -1 must be at least 0"),
        ({"limit": 0}, "limit 0 must be at least 1"),
        ({"max_bytes": 0}, "max_bytes 0 must be at least 1"),
        ({"offset": 1, "byte": 0}, "Pass offset or byte, not both"),
    ],
)
async def test_a_wish_that_makes_no_sense_is_refused(wish: dict[str, int], problem: str) -> None:
    with pytest.raises(InvalidCallError, match=problem):
        await Kept(b"x").page(**wish)


async def test_binary_is_paged_by_the_byte() -> None:
    data = random.Random(3).randbytes(700_000)
    found = await Kept(data).pages(byte=0, max_bytes=123_456)
    assert b"".join(page.data for page in found) == data
