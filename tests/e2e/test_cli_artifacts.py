"""A long output at the command line: shortened when shown, whole on request."""

import asyncio
import base64
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.storage import open_store
from tests.contract.test_artifacts import put
from tests.e2e.cli_driver import COMMAND, Cli, working
from tests.e2e.terminal import Terminal
from tests.part_tools import png
from tests.waiting import wait_until, within

EVERYTHING = "".join(f"{number}\n" for number in range(1, 200_001))


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Cli]:
    folder = tmp_path_factory.mktemp("stack")
    with working(Cli(folder, FORGE_BROKER_URL=broker)) as cli:
        yield cli


@pytest.fixture(scope="module")
def handle(cli: Cli) -> str:
    result = cli.json("run", "Bash", "command=seq 1 200000")
    assert len(result["output"]) <= 100_000
    return str(result["metadata"]["artifact"])


def test_all_of_it_comes_out_byte_for_byte(cli: Cli, handle: str, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        command = [*COMMAND, "artifact", handle]
        subprocess.run(command, cwd=cli.folder, env=cli.environment(), stdout=out, timeout=60, check=True)
    assert (tmp_path / "out").read_text() == EVERYTHING


def test_tools_read_it_too(cli: Cli, handle: str) -> None:
    page = cli.json("run", "Read", f"file_path={handle}", "offset=150000", "limit=1", "line_numbers=false")
    assert page["output"].splitlines()[0] == "150000"
    assert cli.json("run", "Grep", f"path={handle}", "pattern=^77777$")["output"].splitlines()[0] == handle


def test_a_reader_that_has_seen_enough_ends_it_silently(cli: Cli, handle: str) -> None:
    command = [*COMMAND, "artifact", handle]
    with subprocess.Popen(
        command, cwd=cli.folder, env=cli.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.read(2) == b"1\n"
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


def test_a_page_comes_out_alone_and_the_way_on_beside_it(cli: Cli, handle: str) -> None:
    page = cli.run("artifact", handle, "--offset", "150000", "--limit", "3")
    assert page.stdout == "150000\n150001\n150002\n"
    assert page.stderr.strip().endswith("continue with --offset 150003]")
    assert cli.run("artifact", handle, "--byte", "4", "--max-bytes", "3").stdout == "3\n4"
    last = cli.run("artifact", handle, "--offset", "200000")
    assert (last.stdout, last.stderr) == ("200000\n", "")


def test_a_program_reads_page_after_page(cli: Cli, handle: str) -> None:
    seen, following = [], {"offset": 1}
    time_left = within(60, "the pages do not end")
    while following and next(time_left):
        where = [word for name, value in following.items() for word in (f"--{name}", str(value))]
        page = cli.json("artifact", handle, *where, "--limit", "60000", "--max-bytes", "300000")
        assert (page["handle"], page["size"], page["start"]) == (handle, len(EVERYTHING), sum(map(len, seen)))
        seen.append(page["text"])
        following = page["next"]
    assert "".join(seen) == EVERYTHING
    assert len(seen) > 4


@pytest.mark.parametrize(
    ("words", "problem", "code"),
    [
        (("--offset", "200001"), "offset 200,001 is past the end of artifact://", 1),
        (("--byte", "9999999"), "byte 9,999,999 is past the end of artifact://", 1),
        (("--offset", "2", "--byte", "3"), "Pass offset or byte, not both", 1),
        (("--offset", "0"), "--offset", 2),
    ],
)
def test_a_page_that_is_none_is_refused(cli: Cli, handle: str, words: tuple[str, ...], problem: str, code: int) -> None:
    done = cli.run("artifact", handle, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert problem in done.stderr


def test_workers_that_keep_artifacts_in_a_folder_keep_them_out_of_their_database(tmp_path: Path, broker: str) -> None:
    settings = {"FORGE_ARTIFACT_DIR": str(tmp_path / "artifacts"), "FORGE_BROKER_URL": broker}
    cli, stranger = Cli(tmp_path / "stack", **settings), Cli(tmp_path / "stack", FORGE_BROKER_URL=broker)
    cli.folder.mkdir()
    with working(cli):
        result = cli.json("run", "Bash", "command=seq 1 200000")
        handle = result["metadata"]["artifact"]
        assert cli.run("artifact", handle).stdout == EVERYTHING
        assert cli.json("run", "Read", f"file_path={handle}", "offset=150000", "limit=1")["output"].startswith(
            "150000\t"
        )
        files = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
        assert [path.name for path in files] == [handle.removeprefix("artifact://")]
        assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
        assert {"ok"} == {one["level"] for one in cli.json("doctor")["findings"] if one["subject"] == "artifacts"}
        refused = stranger.run("artifact", handle)
        assert (refused.returncode, "(FORGE_ARTIFACT_DIR) cannot be used" in refused.stderr.replace("\n", " ")) == (
            69,
            True,
        )
        files[0].unlink()
        missing = cli.run("artifact", handle)
        assert missing.returncode == 69
        assert f"{handle} is damaged: its file is missing" in missing.stderr.replace("\n", " ")
        assert cli.json("run", "Bash", "command=seq 1 200000")["metadata"]["artifact"] == handle
        assert cli.run("artifact", handle).stdout == EVERYTHING


def test_a_terminal_is_not_written_to_raw(cli: Cli) -> None:
    async def keep() -> str:
        async with await open_store(f"sqlite:///{cli.home / 'forge.db'}") as store:
            return (await put(store, b"\x1b[31mred\x07 end\n\xc3")).handle

    reader, writer = pty.openpty()
    command = [*COMMAND, "artifact", asyncio.run(keep())]
    with subprocess.Popen(command, cwd=cli.folder, env=cli.environment(), stdout=writer) as running:
        os.close(writer)
        seen = b""
        time_left = within(60, "the last line is not written")
        while not seen.endswith("end\r\n\ufffd".encode()) and next(time_left):  # half a character, too
            seen += os.read(reader, 65536)
    os.close(reader)
    assert running.returncode == 0
    assert b"red" in seen
    assert not {7, 27} & set(seen)


@pytest.mark.parametrize("name", ["artifact://" + "0" * 32, "x", "../../etc/passwd", ""])
def test_what_is_not_there_is_said(cli: Cli, name: str) -> None:
    done = cli.run("artifact", name)
    assert done.returncode == 1
    assert "There is no artifact" in done.stderr
    assert done.stdout == ""


def test_what_a_cancelled_command_wrote_is_found_by_its_execution(cli: Cli) -> None:
    found = cli.json("run", "--background", "Bash", "command=seq 1 100000; touch seq-is-done; sleep 60")["id"]
    wait_until((cli.folder / "seq-is-done").exists, 20, lambda: "the command does not start")
    assert cli.json("cancel", found)["outcome"] == "requested"
    story = cli.json("show", found, "--wait", code=1)
    assert story["status"] == "cancelled"
    [kept] = story["artifacts"]
    assert kept["size"] == 588_895
    assert kept["handle"] in cli.run("show", found).stdout


@pytest.mark.parametrize("where", [(), ("--local",)], ids=["on a worker", "here"])
def test_an_image_is_saved_where_it_is_asked_for(cli: Cli, tmp_path: Path, where: tuple[str, ...]) -> None:
    (cli.folder / "red.png").write_bytes(png())

    result = cli.json("run", *where, "Read", "file_path=red.png", "--save", str(tmp_path / "out"))

    assert result["output"].endswith("[image red.png, 75 bytes, image/png]")
    assert (tmp_path / "out" / "red.png").read_bytes() == png()


def test_show_lists_the_parts_with_their_handles(cli: Cli) -> None:
    (cli.folder / "red.png").write_bytes(png())
    result = cli.json("run", "Read", "file_path=red.png")

    shown = cli.run("show", result["metadata"]["execution_id"]).stdout

    assert "Parts" in shown
    assert "[image red.png, 75 bytes, image/png: artifact://" in " ".join(shown.split())  # a cell may wrap


def on_a_terminal(cli: Cli, *words: str, **environment: str) -> str:
    with Terminal(cli, *words, **environment) as terminal:
        assert terminal.process.wait(60) == 0
    return terminal.written


@pytest.mark.parametrize("where", [(), ("--local",)], ids=["on a worker", "here"])
def test_a_terminal_that_shows_images_is_given_them(cli: Cli, where: tuple[str, ...]) -> None:
    (cli.folder / "red.png").write_bytes(png())
    data = base64.b64encode(png()).decode()

    kitty = on_a_terminal(cli, "run", *where, "Read", "file_path=red.png", TERM="xterm-kitty")
    plain = on_a_terminal(cli, "run", *where, "Read", "file_path=red.png", TERM="tmux-256color", KITTY_WINDOW_ID="1")

    assert f"\x1b_Ga=T,f=100,m=0;{data}\x1b\\" in kitty
    assert "[image red.png, 75 bytes, image/png" in kitty
    assert data not in plain


def test_show_gives_them_too(cli: Cli) -> None:
    (cli.folder / "red.png").write_bytes(png())
    result = cli.json("run", "Read", "file_path=red.png")

    shown = on_a_terminal(cli, "show", result["metadata"]["execution_id"], TERM_PROGRAM="iTerm.app")

    assert f"\x1b]1337;File=inline=1;size=75:{base64.b64encode(png()).decode()}\x07" in shown
