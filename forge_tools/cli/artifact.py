"""`forge-tools artifact`: write all of a long output that was kept."""

import codecs
import os
import sys
from typing import Annotated

import typer

from forge_tools.cli.database import with_store
from forge_tools.cli.face import face_of, printable
from forge_tools.cli.lazy import command_app
from forge_tools.storage import Store

app = command_app()


@app.command()
def artifact(
    context: typer.Context,
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="artifact://..., as a shortened output names it.")],
) -> None:
    """Write an artifact to standard output: its bytes as they were kept, to a terminal without what could harm it."""
    is_terminal = face_of(context).out.is_terminal
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def copy(store: Store) -> None:
        async for chunk in store.artifacts.contents(handle):
            if is_terminal:
                sys.stdout.write(printable(decoder.decode(chunk)))
            else:
                sys.stdout.buffer.write(chunk)
        sys.stdout.flush()

    try:
        with_store(copy)
    except BrokenPipeError:  # whoever reads it has seen enough; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
