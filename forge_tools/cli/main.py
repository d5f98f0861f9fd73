"""The list of commands, and the one place where errors become messages and exit codes."""

import errno
import os
import resource
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_command

from forge_tools import __version__
from forge_tools.cli.face import EXIT_CODES, FAILED, OK, App, Face, OutputOption, exit_code, face_of
from forge_tools.errors import ExecutionNotFoundError, ForgeError, ToolNotFoundError, own_words


class Commands(TyperGroup):
    """Every command of `forge-tools`, with its line in the list; its module is imported when it runs."""

    summaries: ClassVar[Mapping[str, str]] = {
        "init": "Create a small project: a tool and its test.",
        "dev": "Run the stack, and reload your tools whenever you save them.",
        "up": "Run broker, database and workers on this machine until Ctrl-C.",
        "worker": "Run one worker, for production or another host.",
        "run": "Run a tool and print its result.",
        "tools": "List the tools, or their schemas for a model.",
        "history": "List executions, newest first.",
        "show": "Show everything about one execution.",
        "logs": "Print what a call printed, logged and emitted.",
        "artifact": "Print a long output that was kept, or a page of it.",
        "cancel": "Cancel an execution, waiting or running.",
        "replay": "Run a past execution again.",
        "stats": "Show how calls ended, how long they took, what waits, and workers.",
        "top": "Watch workers, queues, rates and what needs attention.",
        "export": "Write history to a file, as JSON lines or CSV.",
        "audit": "Prove that history was not changed.",
        "prune": "Delete old history in small steps.",
        "mcp": "Serve the tools to clients of the Model Context Protocol.",
        "keys": "Make, list and retire the keys that encrypt secrets.",
        "db": "Migrate the database.",
        "doctor": "Report what is wrong and how to fix it.",
    }

    homes: ClassVar[Mapping[str, str]] = {
        "artifact": "export",
        "cancel": "calls",
        "replay": "calls",
        "logs": "show",
        "stats": "top",
    }
    """The modules of commands without their own."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _in_plain_words():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _in_plain_words():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.summaries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.summaries:
            return None
        # Typer makes a group of several commands; a single one stands for itself.
        app = get_command(import_module(f"forge_tools.cli.{self.homes.get(cmd_name, cmd_name)}").app)
        command = getattr(app, "commands", {}).get(cmd_name, app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.summaries and not name.startswith("-"):
            close = get_close_matches(name, self.summaries, n=2)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            ctx.fail(f"No such command: {ascii(name)[1:-1]}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))


@contextmanager
def _in_plain_words() -> Iterator[None]:
    """Drop what Pydantic, which reads options for Typer, puts before its messages; `invoke` reads those of commands."""
    try:
        yield
    except typer.BadParameter as error:
        error.message = own_words(error.message)
        raise


_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""Write errors that concern the standard output if they name no file."""


_ADDRESSES = ("ulimit -v", resource.RLIMIT_AS, 1024)  # the stack of a thread takes some
_LIMITED = {
    "processes and threads": (
        (os.strerror(errno.EAGAIN), "can't start new thread"),
        (("ulimit -u", resource.RLIMIT_NPROC, 1), _ADDRESSES),
    ),
    "open files": ((os.strerror(errno.EMFILE),), (("ulimit -n", resource.RLIMIT_NOFILE, 1),)),
    "memory": ((os.strerror(errno.ENOMEM),), (_ADDRESSES,)),
}
"""What a process runs short of: the errors that mean it, and the limits that may be the reason, with their units."""


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"forge-tools {__version__}")  # silent if the output is closed, as the help is
        raise typer.Exit


def _show_where(context: typer.Context, asked: bool) -> None:
    """Before the module of the command is imported, which may fail."""
    if asked:
        face_of(context).is_debugging = True


app = App(cls=Commands, no_args_is_help=True, epilog=EXIT_CODES, add_completion=True)


@app.callback()
def _forge_tools(
    output: OutputOption = None,
    debug: Annotated[bool, Option("--debug", help="Show where errors come from.", callback=_show_where)] = False,
    version: Annotated[
        bool, Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Run tools for AI agents: Celery workers execute them, a SQL database holds every call."""


def main(arguments: Sequence[str] | None = None, *, of: typer.Typer = app, name: str = "forge-tools") -> int:
    """Run one command `of` a program; return or exit with the code that its help documents."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not if it is closed, or replaced
            stream.reconfigure(errors="backslashreplace")  # tools print lone surrogates, and a locale may be ASCII
    face = Face()
    try:
        with face.notices(), threads_told(face):
            get_command(of).main(words, prog_name=name, obj=face)
    except ForgeError as error:
        face.fail(str(error), error.code, error)
        if isinstance(error, ExecutionNotFoundError | ToolNotFoundError):  # it may be in another database
            face.note(import_module("forge_tools.cli.services").asked())
        return exit_code(error)
    except Exception as error:  # noqa: BLE001 whatever it is, a user sees one line and the way to more
        face.fail(_unexpected(error), "UNEXPECTED", error)
        return FAILED
    finally:
        _let_go_of_a_full_output()
    return OK


@contextmanager
def threads_told(face: Face) -> Iterator[None]:
    """Show an error that ends one of our threads like an error of the command; other threads show their tracebacks."""

    def tell(failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread else ""
        if "_connection_worker_thread" in name:
            return  # of aiosqlite: it could not connect, which the command itself reports
        is_ours = name.startswith("forge-")
        if is_ours and failed.exc_value is not None:
            face.note(f"Error: {_unexpected(failed.exc_value)}")
        if not is_ours or face.is_debugging:
            before(failed)

    before, threading.excepthook = threading.excepthook, tell
    try:
        yield
    finally:
        threading.excepthook = before


def _unexpected(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
        return f"Standard output cannot be written: {error.strerror}."
    if short := _shortage(error):
        return short
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return f"{error.filename}: {error.strerror}."
    return (
        f"{type(error).__name__}: {error or 'no message'}. This is not your mistake; run the command again as "
        "forge-tools --debug ... to see where it happened."
    )


def _shortage(error: BaseException) -> str | None:
    """Say what this process cannot get, and which limits may be the reason; None if that is not what the error means."""
    said = os.strerror(errno.ENOMEM) if isinstance(error, MemoryError) else str(getattr(error, "strerror", error))
    for what, (means, limits) in _LIMITED.items():
        if said in means:
            known = ", ".join(f"{name} is {_limit(number, unit)}" for name, number, unit in limits)
            return (
                f"{said}: this process gets no more {what} ({known}). Raise the limit, or that of the container or "
                "service it runs in, or end what uses it up."
            )
    return None


def _limit(number: int, unit: int) -> str:
    most, _ = resource.getrlimit(number)
    return "unlimited" if most == resource.RLIM_INFINITY else f"{most // unit:,}"


def _let_go_of_a_full_output() -> None:
    """Discard what could not be written: Python would try again at exit, and end with its own exit code."""
    out = sys.__stdout__  # `sys.stdout` may be a wrapper by now
    if out is None or out.closed:
        return
    try:
        out.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.fileno())
        os.close(nowhere)
