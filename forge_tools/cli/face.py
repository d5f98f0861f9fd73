"""The output of commands, text for people or JSON for programs, and the exit codes that scripts may rely on."""

import errno
import fcntl
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from rich.console import Console
from rich.text import Text
from typer import Option

from forge_tools.cli.text import as_json, printable
from forge_tools.errors import (
    ConfigurationError,
    DuplicateToolError,
    ForgeError,
    InvalidToolError,
    StackError,
    StorageError,
    SubmitOutcomeUnknownError,
)

OK, FAILED, USAGE, UNAVAILABLE, CONFIGURATION, INTERRUPTED = 0, 1, 2, 69, 78, 130

EXIT_CODES = """\b
Exit codes:
  0    done
  1    the call or the command failed
  2    the command line is wrong
  69   a service cannot be reached or used: database, embedded stack
  78   the configuration or the installation must be fixed
  130  interrupted
"""

_CODES = {
    (ConfigurationError, InvalidToolError, DuplicateToolError): CONFIGURATION,
    (StorageError, StackError, SubmitOutcomeUnknownError): UNAVAILABLE,
}


def exit_code(error: Exception) -> int:
    return next((code for kinds, code in _CODES.items() if isinstance(error, kinds)), FAILED)


UNBOUNDED = 10_000
"""The width of a pipe or a file, which no screen limits."""


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


class _Closed(StringIO):
    """Stands for a standard output that was closed before the command began."""

    def write(self, text: str, /) -> int:
        return standard_output().write(text)


class StreamConsole(Console):
    """Raises when nobody reads any more, as other streams do; Rich's own console would exit, from any thread."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _console() -> Console:
    console = StreamConsole(file=_Closed() if sys.stdout is None else None, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = shutil.get_terminal_size((UNBOUNDED, 24)).columns  # COLUMNS, if that is set
    return console


@dataclass
class Face:
    """How this run of a command shows its output."""

    output: Output = Output.TEXT
    is_debugging: bool = False
    out: Console = field(default_factory=_console)
    err: Console = field(default_factory=lambda: StreamConsole(stderr=True, highlight=False))
    pictures: str = ""
    """The terminal sequence that draws the images of the result; it is generated here, never by a tool."""
    is_heard: bool = True
    """Whether somebody has to read the output; if not, what cannot be written is dropped."""
    _kept: TextIO | None = None

    @property
    def is_json(self) -> bool:
        return self.output is Output.JSON

    def document(self, value: Any) -> None:
        """Print the one JSON document of this command."""
        self._write(as_json(value, indent=2))

    def line(self, value: Any) -> None:
        """Print one JSON object of many, on one line."""
        self._write(as_json(value, separators=(",", ":")))

    def tell(self, document: Any, sentence: str) -> None:
        """Print what happened: a JSON document for programs, a sentence for people."""
        if self.is_json:
            self.document(document)
        else:
            self.say(sentence)

    def raw(self, text: str) -> None:
        """Print the output of a tool, and its pictures: unchanged to a pipe, with control characters escaped to a terminal."""
        self._write(printable(text) if self.out.is_terminal else text)
        if self.pictures:
            self._write(self.pictures)

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line for people; markup is not interpreted."""
        with self._writing():
            self.out.print(Text(printable(text), style=style), soft_wrap=True)

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line beside the output, on the error stream, if that can be written: nothing depends on it."""
        self._note(Text(printable(text), style=style))

    def fail(self, message: str, code: str, error: BaseException) -> None:
        """Print an error: one message that says what to do, and its traceback only on request."""
        is_told = False
        if self.is_json:
            with suppress(OSError, ForgeError):  # standard output cannot be written
                self.document({"error": {"code": str(code), "message": message}})
                is_told = True
        if not is_told:
            self._note(Text.assemble(("Error: ", "bold red"), printable(message)))
        if self.is_debugging:
            self._note(Text(printable("".join(traceback.format_exception(error)))))

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

    def claim_output(self) -> None:
        """Reserve the standard output for documents: from here on tools, their processes and C code print to stderr."""
        if sys.stdout is None:
            return
        sys.stdout.flush()
        kept = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)  # 2 would be the next one if the error stream is closed
        self._kept = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors="backslashreplace")
        # Python knows that it was started without an error stream; a library may have opened a file under its number.
        os.dup2(os.open(os.devnull, os.O_WRONLY) if sys.__stderr__ is None else 2, 1)

    def _note(self, text: Text) -> None:
        with suppress(OSError):
            self.err.print(text, soft_wrap=True)

    def _write(self, text: str) -> None:
        # Not Rich, which would wrap; nothing here is styled.
        out = self._kept or standard_output()
        with self._writing():
            out.write(text if text.endswith("\n") else f"{text}\n")
            out.flush()

    def _writing(self) -> AbstractContextManager[None]:
        return nullcontext() if self.is_heard else suppress(OSError)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add this path to errors of writes, which name none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def can_ask() -> bool:
    """Return whether somebody sits at standard input, which may be closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def standard_output() -> TextIO:
    """Return the stream for output that Rich must not touch."""
    if sys.stdout is None:
        raise ForgeError("Standard output is closed.")
    return sys.stdout


class _Notices(logging.Handler):
    """Turns warnings of this package into notes; those of libraries only when debugging."""

    def __init__(self, face: Face) -> None:
        super().__init__(logging.WARNING)
        self._face = face
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        # The result already contains what a tool logs about a call.
        is_for_people = record.name.startswith("forge_tools.") and not record.name.startswith("forge_tools.tools")
        if not is_for_people and not self._face.is_debugging:
            return
        error = getattr(record, "error", None)
        text = record.getMessage() + (f": {error}" if error else "")
        if text not in self._seen:
            self._seen.add(text)
            self._face.note(f"Warning: {text}", style="yellow")


def _choose(context: typer.Context, output: Output | None) -> Output | None:
    if output is not None:
        face_of(context).output = output
    return output


def face_of(context: typer.Context) -> Face:
    return cast("Face", context.find_root().obj)


OutputOption = Annotated[
    Output | None, Option("--output", "-o", callback=_choose, help="text for people (the default), json for programs.")
]
"""It may come before or after the name of a command."""


LocalToolsOption = Annotated[
    list[str] | None, Option("--tools", metavar="MODULE|FILE", help="With --local: load these too.")
]
BackgroundOption = Annotated[bool, Option("--background", help="Print the id and return without waiting.")]
WideOption = Annotated[bool, Option("--wide", help="Show all columns, however narrow the terminal is.")]


class App(typer.Typer):
    """The app of a command: plain help that is quick to load and readable at 80 columns.

    A command with the parameter `face` gets that of this run, and takes `--output`.
    """

    def __init__(self, **options: Any) -> None:
        plain: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False, "add_completion": False}
        super().__init__(**plain | options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        register = super().command(name, **options)
        return lambda function: register(_with_face(function))


def _with_face(command: Callable[..., None]) -> Callable[..., None]:
    own = signature(command).parameters
    if "face" not in own:
        return command

    @wraps(command)
    def run(context: typer.Context, output: Output | None, **words: Any) -> None:
        if "context" in own:
            words["context"] = context
        command(face=face_of(context), **words)

    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    output = Parameter("output", Parameter.KEYWORD_ONLY, default=None, annotation=OutputOption)
    others = (one for name, one in own.items() if name not in ("face", "context"))
    # Typer takes the options from here. It is set in this way since functions have no such attribute for mypy.
    vars(run)["__signature__"] = Signature([context, *others, output])
    return run
