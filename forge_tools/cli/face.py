"""What a command shows: text for people or JSON for programs, on one output and one error stream."""

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, TextIO, cast

import typer
from rich.console import Console
from rich.text import Text

from forge_tools.errors import ForgeError

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, marks that reorder text on a terminal, and lone surrogates."""


class Output(StrEnum):
    """Whom the output is for."""

    TEXT = "text"
    JSON = "json"


def printable(text: object) -> str:
    """Escape what would move the cursor, reorder text or cannot be encoded."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], str(text))


def one_line(text: object) -> str:
    """Make a text fit a table's cell: printable, white space collapsed."""
    return " ".join(printable(text).split())


@dataclass
class Face:
    """How this run of the command shows things."""

    output: Output = Output.TEXT
    is_debugging: bool = False
    out: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=False))
    err: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))

    @property
    def is_json(self) -> bool:
        return self.output is Output.JSON

    def document(self, value: Any) -> None:
        """Print the one JSON document of this command."""
        self._write(json.dumps(value, indent=2, default=str))

    def line(self, value: Any) -> None:
        """Print one JSON object of many, on one line."""
        self._write(json.dumps(value, separators=(",", ":"), default=str))

    def raw(self, text: str) -> None:
        """Print what a tool put out: to a terminal without what could harm it, to a pipe as it is."""
        self._write(printable(text) if self.out.is_terminal else text)

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line for people; nothing in it is markup."""
        self.out.print(Text(printable(text), style=style), soft_wrap=True)

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line beside the output, on the error stream."""
        self.err.print(Text(printable(text), style=style), soft_wrap=True)

    def fail(self, message: str, code: str, error: BaseException) -> None:
        """Print an error: one message that says what to do, and where it came from only if asked."""
        if not (self.is_json and self._told({"error": {"code": str(code), "message": message}})):
            self.err.print(Text.assemble(("Error: ", "bold red"), printable(message)), soft_wrap=True)
        if self.is_debugging:
            self.err.print(Text(printable("".join(traceback.format_exception(error)))), soft_wrap=True)

    @contextmanager
    def notices(self) -> Iterator[None]:
        """Show the package's warnings as lines on the error stream, each once."""
        handler = _Notices(self)
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)

    def _told(self, value: Any) -> bool:
        try:
            self.document(value)
        except (OSError, ForgeError):
            return False
        return True

    def _write(self, text: str) -> None:
        # Not Rich: it would wrap, and nothing here is to be styled.
        out = standard_output()
        out.write(text if text.endswith("\n") else f"{text}\n")
        out.flush()


def standard_output() -> TextIO:
    """Where output goes that Rich is not to touch.

    Raises:
        ForgeError: this process was started without.
    """
    if sys.stdout is None:
        raise ForgeError("The standard output is closed.")
    return sys.stdout


class _Notices(logging.Handler):
    """Warnings of this package become notes; those of libraries only when debugging."""

    def __init__(self, face: Face) -> None:
        super().__init__(logging.WARNING)
        self._face = face
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if not self._face.is_debugging and not _is_for_people(record.name):
            return
        error = getattr(record, "error", None)
        text = record.getMessage() + (f": {error}" if error else "")
        if text not in self._seen:
            self._seen.add(text)
            self._face.note(f"Warning: {text}", style="yellow")


def _is_for_people(logger: str) -> bool:
    # What a tool logs about a call, its result says too.
    return logger.startswith("forge_tools.") and not logger.startswith("forge_tools.tools")


def face_of(context: typer.Context) -> Face:
    """The face that `main` gave this run."""
    return cast("Face", context.find_root().obj)


def _choose(context: typer.Context, output: Output | None) -> Output | None:
    if output is not None:
        face_of(context).output = output
    return output


OutputOption = Annotated[
    Output | None,
    typer.Option("--output", "-o", callback=_choose, help="For people (text, the default) or programs (json)."),
]
"""Every command takes it, before its name or after."""
