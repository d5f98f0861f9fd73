"""What a person sees of a running call: whole lines, a bar, and a note at each gap."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from forge_tools.cli import live
from forge_tools.cli.face import Face
from forge_tools.cli.live import View, measured, noted
from forge_tools.model import Note, Output, Progress
from forge_tools.model.history import Event

CANCEL = Note(event=Event(at=datetime.now(UTC), kind="cancel", actor="me", detail={"reason": "too \x1b[2Jslow"}))


class Shown:
    """A face whose error stream can be read."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._stream = io.StringIO()
        err = Console(file=self._stream, force_terminal=is_terminal, width=80, highlight=False)
        self.face = Face(out=Console(file=io.StringIO()), err=err)

    @property
    def text(self) -> str:
        return self._stream.getvalue()


@pytest.fixture
def shown() -> Shown:
    return Shown(is_terminal=False)


def test_parts_of_lines_are_shown_as_lines(shown: Shown) -> None:
    with View(shown.face) as view:
        for part in ("on", "e\ntw", "o\n", "unfinished"):
            view.hear(Output(text=part))
        assert shown.text == "one\ntwo\n"

    assert shown.text == "one\ntwo\nunfinished\n"


def test_what_is_left_out_is_said_between_the_lines(shown: Shown) -> None:
    with View(shown.face) as view:
        view.hear(Output(text="begun"))
        view.hear(Output(text="the end\n", left_out=1234))

    assert shown.text == "begun\n... 1,234 bytes left out ...\nthe end\n"


def test_progress_is_a_line_a_second_and_the_last_one_always(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    with View(shown.face) as view:
        for number in range(21):
            view.hear(Progress(done=number, total=20))
            now[0] += 0.3

    lines = shown.text.splitlines()
    assert lines[0] == "0 of 20 (0%)"
    assert lines[-1] == "20 of 20 (100%)"
    assert len(lines) <= 8


def test_nothing_that_a_tool_says_moves_the_cursor(shown: Shown) -> None:
    with View(shown.face) as view:
        view.hear(Output(text="\x1b[2J\u202e[bold]x[/]\n"))
        view.hear(Progress(done=1, message="\x1b[2J"))
        view.hear(CANCEL)

    assert "\x1b" not in shown.text
    assert "\u202e" not in shown.text
    assert "[bold]x[/]" in shown.text
    assert "cancel by me: too \\x1b[2Jslow" in shown.text


@pytest.mark.parametrize("keeps_output", [True, False])
def test_a_terminal_has_a_bar_that_goes_at_the_end(keeps_output: bool) -> None:
    shown = Shown(is_terminal=True)
    with View(shown.face, keeps_output=keeps_output) as view:
        view.say("build runs on vm")
        view.hear(Output(text="compiling\n"))
        view.hear(Progress(done=3, total=10, message="file3.c"))

    assert "build runs on vm" in shown.text
    assert "compiling" in shown.text
    assert "━" in shown.text
    assert "3 of 10 (30%)  file3.c" in shown.text
    assert shown.text.endswith("\x1b[2K")


def test_a_terminal_shows_the_last_lines_alone() -> None:
    shown = Shown(is_terminal=True)
    with View(shown.face, keeps_output=False) as view:
        view.hear(Output(text="".join(f"line {number}\n" for number in range(100))))

    assert "line 99" in shown.text
    assert "line 50" not in shown.text


def test_a_terminal_with_nothing_to_say_stays_as_it_is() -> None:
    shown = Shown(is_terminal=True)
    with View(shown.face, keeps_output=False):
        pass

    assert shown.text == ""


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress(done=3), "3"),
        (Progress(done=0.5, total=1, message="half\nway"), "0.5 of 1 (50%)  half way"),
        (Progress(done=12, total=10), "12 of 10 (100%)"),
        (Progress(done=-1, total=10), "-1 of 10 (0%)"),
    ],
)
def test_how_far_it_is_takes_a_few_words(progress: Progress, said: str) -> None:
    assert measured(progress) == said


def test_a_note_without_a_reason_has_none() -> None:
    assert noted(Note(event=Event(at=datetime.now(UTC), kind="requeue", actor="recovery"))) == "requeue by recovery"
