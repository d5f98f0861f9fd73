"""The command itself: runs every check, prints what they found, and says by its exit code whether all is well."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from forge_tools.cli import exits
from forge_tools.cli.doctor.broker import check_broker
from forge_tools.cli.doctor.finding import Finding, Level
from forge_tools.cli.doctor.fleet import check_fleet, is_worker_alive
from forge_tools.cli.doctor.machine import check_machine
from forge_tools.cli.face import Face, OutputOption, face_of, one_line
from forge_tools.cli.lazy import command_app
from forge_tools.config import Settings

app = command_app()

_STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}
_ALIVE = "A worker of {} is alive."
_NOT_ALIVE = "No worker of {} has been seen for {:g} s."


@app.command()
def doctor(
    context: typer.Context,
    worker: Annotated[
        bool, typer.Option("--worker", help="Only say by the exit code whether a worker of this host is alive.")
    ] = False,
    output: OutputOption = None,
) -> None:
    """Say what is wrong with broker, database, workers and versions, and the way out of each.

    Exit code 0: all is well; 1: there are problems.
    """
    settings = Settings.load()
    face = face_of(context)
    if worker:
        _report_worker(face, settings)
        return
    findings = [*check_machine(settings), *check_broker(settings), *asyncio.run(check_fleet(settings))]
    problems = [one for one in findings if one.level is Level.PROBLEM]
    if face.is_json:
        face.document({"healthy": not problems, "findings": [asdict(one) for one in findings]})
    else:
        face.out.print(_table(findings))
        face.say()
        face.say(_verdict(len(problems)), style="bold red" if problems else "green")
    if problems:
        raise typer.Exit(exits.FAILED)


def _report_worker(face: Face, settings: Settings) -> None:
    is_alive = asyncio.run(is_worker_alive(settings))
    if face.is_json:
        face.document({"hostname": settings.hostname, "alive": is_alive})
    else:
        face.say(_ALIVE.format(settings.hostname) if is_alive else _NOT_ALIVE.format(settings.hostname, settings.lease))
    if not is_alive:
        raise typer.Exit(exits.FAILED)


def _table(findings: Sequence[Finding]) -> Table:
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for one in findings:
        made.add_row(Text(one.level.value, style=_STYLES[one.level]), one.subject, Text(one_line(one.said)))
        if one.way_out:
            made.add_row("", "", Text(one_line(one.way_out), style="cyan"))
    return made


def _verdict(problems: int) -> str:
    if not problems:
        return "All is well."
    return "1 problem." if problems == 1 else f"{problems} problems."
