"""`forge-tools logs`: what a call printed, logged and put out."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import typer
from typer import Option

from forge_tools.cli.database import with_store
from forge_tools.cli.face import App, Face
from forge_tools.cli.ids import IdArgument
from forge_tools.cli.live import Lines
from forge_tools.cli.show import StoredCalls, as_logged, log_line, told_by
from forge_tools.client.handle import follow as following
from forge_tools.model import Output
from forge_tools.storage import Store

LEVELS = ("debug", "info", "warning", "error", "critical")

app = App()


def _level(name: str | None) -> str | None:
    if name is not None and name.lower() not in LEVELS:
        raise typer.BadParameter(f"{name} is none of {', '.join(LEVELS)}.")
    return name


@app.command()
def logs(
    face: Face,
    execution_id: IdArgument,
    *,
    follow: Annotated[bool, Option("--follow", "-f", help="Go on until it is over.")] = False,
    level: Annotated[
        str | None,
        Option(metavar="LEVEL", callback=_level, help="Only what was logged, at this level or above, such as warning."),
    ] = None,
) -> None:
    """Print what a call has printed (stdout, stderr), logged and emitted so far, of all its attempts and in order.

    As JSON it is one object a part, which may have several lines.
    """
    least = None if level is None else logging.getLevelNamesMapping()[level.upper()]

    async def read(store: Store) -> int:
        found, count, lines = (await store.history.get(execution_id)).id, 0, Lines()
        async with aclosing(_followed(store, found) if follow else told_by(store, found)) as outputs:
            async for output in outputs:
                if least is None or (output.level is not None and output.level >= least):
                    count += 1
                    _print(face, output, lines)
        for told, line in lines.rest():
            face.out.print(log_line(told, line), soft_wrap=True)
        return count

    if not with_store(read) and not face.is_json:
        face.note("Nothing of the kind is in its record." if level else "It has printed, logged and put out nothing.")


async def _followed(store: Store, execution_id: str) -> AsyncGenerator[Output, None]:
    async with aclosing(following(StoredCalls(store), execution_id, None)) as events:
        async for event in events:
            if isinstance(event, Output):
                yield event


def _print(face: Face, output: Output, lines: Lines) -> None:
    if face.is_json:
        face.line(as_logged(output))
        return
    for told, line in lines.add(output):
        face.out.print(log_line(told, line), soft_wrap=True)
