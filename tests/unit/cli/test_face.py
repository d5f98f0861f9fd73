"""What reaches a terminal, a pipe and a program."""

import errno
import io
import json
import logging
import subprocess
import sys

import pytest
from rich.console import Console

from forge_tools.cli.face import Face, Output, StreamConsole
from forge_tools.cli.text import one_line, printable


def face(**fields: object) -> Face:
    return Face(
        out=StreamConsole(file=io.StringIO(), width=80),
        err=StreamConsole(file=io.StringIO(), width=80),
        **fields,
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb\x00", "a\\rb\\x00"),
        ("evil\u202etxt.exe", "evil\\u202etxt.exe"),
        ("\ud800", "\\ud800"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("grüße 👩‍💻", "grüße 👩‍💻"),
    ],
)
def test_what_could_harm_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_cell_has_one_line() -> None:
    assert one_line("a\n\n  b\t\x07") == "a b \\x07"


def test_markup_in_a_text_is_only_text() -> None:
    shown = face()
    shown.say("[bold]not bold[/]")
    assert written(shown.out) == "[bold]not bold[/]\n"


def test_a_pipe_gets_output_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    face().raw("\x1b[31mred\n")
    assert capsys.readouterr().out == "\x1b[31mred\n"


def test_a_terminal_gets_output_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Face(out=StreamConsole(file=io.StringIO(), force_terminal=True))
    shown.raw("\x1b[31mred")
    assert capsys.readouterr().out == "\\x1b[31mred\n"


def test_an_error_is_one_json_document_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    face(output=Output.JSON).fail("no\ud800", "BROKEN", ValueError())
    assert json.loads(capsys.readouterr().out) == {"error": {"code": "BROKEN", "message": "no\ud800"}}


def test_where_an_error_comes_from_is_shown_only_when_asked() -> None:
    silent, debugging = face(), face(is_debugging=True)
    try:
        raise ValueError("deep down")
    except ValueError as error:
        silent.fail("it failed", "X", error)
        debugging.fail("it failed", "X", error)
    assert written(silent.err) == "Error: it failed\n"
    assert "Traceback" in written(debugging.err)


def test_warnings_of_the_package_are_said_once_with_their_reason() -> None:
    shown = face()
    with shown.notices():
        for _ in range(2):
            logging.getLogger("forge_tools.dispatch").warning("Broker away", extra={"error": "refused"})
        logging.getLogger("kombu").warning("noise")
        logging.getLogger("forge_tools.tools").warning("said by the result")
    assert written(shown.err) == "Warning: Broker away: refused\n"


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "full")])
def test_a_warning_that_nobody_can_read_stops_nothing(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> int:
        raise error

    shown = face()
    monkeypatch.setattr(shown.err.file, "write", refuse)
    with shown.notices():
        logging.getLogger("forge_tools.embedded").warning("A worker died")


@pytest.mark.parametrize("closed", ["", "2>&-"], ids=["with an error stream", "without"])
def test_a_claimed_output_has_documents_alone(closed: str) -> None:
    program = "import os; from forge_tools.cli.face import Face; f = Face(); f.claim_output(); os.write(1, b'x'); print(1); f.line({})"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program], capture_output=True, timeout=30
    )

    assert done.stdout == b"{}\n"
