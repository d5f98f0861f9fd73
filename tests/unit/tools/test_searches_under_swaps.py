"""A search whose folders are swapped meanwhile: nothing outside is revealed, and nothing inside is missed."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forge_tools.model import ToolResult
from forge_tools.sandbox.processes.commands import find_beside_python
from forge_tools.tools.file import ripgrep
from forge_tools.tools.file.grep import Grep
from tests.waiting import within

Call = Callable[..., Awaitable[ToolResult]]
MODES = ("content", "files_with_matches", "count")
SWAPPING = """#!/bin/sh
# What a search sees that is overtaken between the listing of a folder and its opening.
mv '{ws}/d' '{ws}/hold' && ln -s ../evil '{ws}/d'
'{rg}' --follow "$@"
code=$?
rm '{ws}/d' && mv '{ws}/hold' '{ws}/d'
exit $code
"""
BUSY = """#!/bin/sh
touch '{ws}/d/made-meanwhile' '{ws}/made-meanwhile'
exec '{rg}' "$@"
"""


@pytest.fixture
def swapped(ws: Path) -> Path:
    """A folder, and one outside with the same names in it and more."""
    evil = ws.parent / "evil"
    for folder in (ws / "d", evil):
        folder.mkdir()
        (folder / "same.txt").write_text("inside hit\n")
        (folder / "other.txt").write_text("nothing\n")
    (evil / "same.txt").write_text("canary hit\n")
    (evil / "other.txt").write_text("canary hit\n")
    (evil / "more.txt").write_text("canary hit\n")
    (evil / "picture").write_bytes(b"hit\0\1")
    (ws / "a.txt").write_text("a hit\n")
    return ws


def grep_by(script: str, ws: Path, caller: Callable[[Grep], Call], monkeypatch: pytest.MonkeyPatch) -> Call:
    program = ws.parent / "rg"
    program.write_text(script.format(ws=ws, rg=find_beside_python("rg")))
    program.chmod(0o755)
    monkeypatch.setattr(ripgrep, "find_beside_python", lambda _: None)
    return caller(Grep(program))


@pytest.mark.parametrize("mode", MODES)
async def test_hits_of_a_folder_that_was_swapped_for_a_link_are_not_told(
    swapped: Path, caller: Callable[[Grep], Call], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    grep = grep_by(SWAPPING, swapped, caller, monkeypatch)
    result = await grep(pattern="canary|a hit", output_mode=mode)
    told = f"{result.output}{result.metadata}"
    assert "a.txt" in result.output
    assert not any(word in told for word in ("canary", "more.txt", "other.txt:", "picture"))
    assert "d: changed while it was searched" in result.metadata["warnings"][0]
    assert not result.metadata.keys() & {"matching_files", "matching_lines", "total_records", "files_searched"}


async def test_that_something_outside_would_match_is_not_hinted_at(
    swapped: Path, caller: Callable[[Grep], Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    grep = grep_by(SWAPPING, swapped, caller, monkeypatch)
    for pattern in ("canary", "CANARY"):
        result = await grep(pattern=pattern)
        assert result.output.startswith(f"No matches for '{pattern}' in the working directory.")
        assert "ignore_case" not in result.output
        if (swapped / "hold").exists():  # the search was stopped at its first hit, and the script with it
            (swapped / "d").unlink(missing_ok=True)
            (swapped / "hold").rename(swapped / "d")


@pytest.mark.parametrize("mode", MODES)
async def test_hits_in_a_folder_that_others_write_to_meanwhile_are_looked_at_again_and_told(
    swapped: Path, caller: Callable[[Grep], Call], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    (swapped / "d/utf16.txt").write_bytes("\ufeffinside hit\n".encode("utf-16-le"))
    (swapped / "d/marked.txt").write_bytes("\ufeffinside hit\n".encode())
    (swapped / "d/odd\nname.txt").write_text("x\r\ninside hit\r\n")
    calm = await caller(Grep())(pattern="hit", output_mode=mode, context_lines=1)
    busy = await grep_by(BUSY, swapped, caller, monkeypatch)(pattern="hit", output_mode=mode, context_lines=1)
    assert busy.output == calm.output
    assert "warnings" not in busy.metadata


async def test_a_secret_that_appears_after_the_survey_is_not_told(
    swapped: Path, caller: Callable[[Grep], Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = "#!/bin/sh\necho 'hit secret' > '{ws}/d/.env'\n'{rg}' \"$@\"\n"
    grep = grep_by(late, swapped, caller, monkeypatch)
    for mode in MODES:
        result = await grep(pattern="hit", output_mode=mode)
        assert "d/same.txt" in result.output
        assert "secret" not in result.output
        assert "d/.env:" not in result.output
        (swapped / "d/.env").unlink()


async def test_a_folder_that_is_swapped_at_full_speed_leads_no_search_out(
    swapped: Path, caller: Callable[[Grep], Call]
) -> None:
    link, real, held, stop = swapped / "link", swapped / "d", swapped / "hold", threading.Event()
    link.symlink_to("../evil")

    def swap() -> None:
        time_left = within(60, "nobody stops the swaps")
        while not stop.is_set() and next(time_left):
            real.rename(held)
            link.rename(real)
            real.rename(link)
            held.rename(real)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(90):
            result = await caller(Grep())(pattern="canary", output_mode=MODES[number % 3])
            assert result.success, result.error
            assert "canary hit" not in result.output
            assert "more.txt" not in f"{result.output}{result.metadata}"
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)


@pytest.mark.parametrize("mode", MODES[1:])
async def test_no_file_is_lost_when_more_are_searched_again_than_are_open_at_once(
    ws: Path, caller: Callable[[Grep], Call], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    (ws / "d").mkdir()
    for number in range(250):
        (ws / "d" / f"{number}.py").write_text("a hit\n")

    result = await grep_by(BUSY, ws, caller, monkeypatch)(pattern="hit", output_mode=mode, type="py", head_limit=1000)

    assert result.output.count(".py") == 250
    assert "warnings" not in result.metadata
