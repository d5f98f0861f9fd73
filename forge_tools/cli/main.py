"""The list of commands, and the one place where errors become messages and exit codes."""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import typer
from typer.main import get_command

from forge_tools import __version__
from forge_tools.cli import exits
from forge_tools.cli.face import Face, OutputOption, face_of
from forge_tools.cli.lazy import Lazy, LazyGroup, command_app
from forge_tools.errors import ForgeError


class Commands(LazyGroup):
    """Every command of `forge-tools`."""

    registry: ClassVar[Mapping[str, Lazy]] = {
        "up": Lazy("forge_tools.cli.up", "Run broker, database and workers on this machine until Ctrl-C."),
        "worker": Lazy("forge_tools.cli.worker", "Run one worker, for production or another host."),
        "run": Lazy("forge_tools.cli.run", "Run a tool and print its result."),
        "tools": Lazy("forge_tools.cli.tools", "List the tools, or their schemas for a model."),
        "history": Lazy("forge_tools.cli.history", "List what was run, newest first."),
        "show": Lazy("forge_tools.cli.show", "Show everything about one execution."),
        "artifact": Lazy("forge_tools.cli.artifact", "Write a long output that was kept, or a page of it."),
        "cancel": Lazy("forge_tools.cli.cancel", "Cancel an execution, waiting or running."),
        "replay": Lazy("forge_tools.cli.replay", "Run an execution of the past again."),
        "stats": Lazy("forge_tools.cli.stats", "How calls ended, how long they took, what waits, who works."),
        "top": Lazy("forge_tools.cli.top", "Watch workers, queues, rates and what needs attention."),
        "export": Lazy("forge_tools.cli.export", "Write history to a file, as JSON lines or CSV."),
        "audit": Lazy("forge_tools.cli.audit", "Prove that history is what it was when it was sealed."),
        "prune": Lazy("forge_tools.cli.prune", "Delete old history, gently."),
        "mcp": Lazy("forge_tools.cli.mcp", "Serve the tools to clients of the Model Context Protocol."),
        "keys": Lazy("forge_tools.cli.keys", "Make, list and retire the keys that secrets are sealed with."),
        "db": Lazy("forge_tools.cli.db", "Migrate the database."),
        "doctor": Lazy("forge_tools.cli.doctor", "Say what is wrong, and the way out."),
    }


_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""What writing fails with where no file is named: that is the standard output."""


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"forge-tools {__version__}")  # which says nothing where the output is closed, as the help does
        raise typer.Exit


app = command_app(cls=Commands, no_args_is_help=True, epilog=exits.EPILOG)


@app.callback()
def _forge_tools(
    context: typer.Context,
    output: OutputOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where errors come from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Run tools for AI agents: Celery workers execute them, a SQL database holds every call."""
    face_of(context).is_debugging = debug


def main(arguments: Sequence[str] | None = None, *, of: typer.Typer = app, name: str = "forge-tools") -> int:
    """Run one command `of` a program; returns or exits with the code that `exits` documents."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        _never_fail_to_encode(stream)
    face = Face()
    try:
        with face.notices():
            get_command(of).main(words, prog_name=name, obj=face)
    except ForgeError as error:
        face.fail(str(error), error.code, error)
        return exits.code_for(error)
    except Exception as error:  # noqa: BLE001 whatever it is, a user sees one line and the way to more
        face.fail(_unexpected(error), "UNEXPECTED", error)
        return exits.FAILED
    finally:
        _let_go_of_a_full_output()
    return exits.OK


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
        return f"The standard output cannot be written: {error.strerror}."
    return (
        f"{type(error).__name__}: {error or 'no message'}. This is not your mistake; run the command again as "
        "forge-tools --debug ... to see where it happened."
    )


def _let_go_of_a_full_output() -> None:
    """What could not be written was said; Python would try it once more at its end, and exit with a code of its own."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _never_fail_to_encode(stream: object) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
