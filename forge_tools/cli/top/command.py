"""The command: once for scripts and pipes, else live until Ctrl-C."""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from forge_tools.cli import stuck
from forge_tools.cli.database import with_store
from forge_tools.cli.face import OutputOption, face_of
from forge_tools.cli.lazy import command_app
from forge_tools.cli.moments import iso
from forge_tools.cli.top import picture
from forge_tools.cli.top.attention import Concern, concerns
from forge_tools.cli.top.screen import Frame, Screen
from forge_tools.cli.top.watching import Watch
from forge_tools.config import Settings
from forge_tools.records import Overview
from forge_tools.storage import Store
from forge_tools.urls import without_passwords

LONGEST_WINDOW = 3600

app = command_app()


@app.command()
def top(
    context: typer.Context,
    *,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    window: Annotated[
        float, typer.Option(min=1, max=LONGEST_WINDOW, help="Figures are of calls that ended in so many seconds.")
    ] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, print all of it, and end.")] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Look once, and write what there is to see as a picture.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """Watch workers, queues, rates and what needs attention, from SQL alone, until Ctrl-C.

    Without a terminal, and with --output json, it looks once.
    """
    settings = Settings.load()
    face = face_of(context)
    where = place(settings.database)

    async def look(store: Store) -> Overview:
        patience = stuck.BEATS * settings.heartbeat
        return await store.overviews.read(window=window, lease=settings.lease, patience=patience)

    def judged(seen: Overview) -> list[Concern]:
        return concerns(seen, heartbeat=settings.heartbeat, lease=settings.lease)

    if not (once or svg or face.is_json) and face.out.is_terminal and not face.out.is_dumb_terminal:
        asyncio.run(Watch(face, settings, look, lambda seen: Frame(seen, judged(seen), where, interval)).run(interval))
        return
    seen = with_store(look, settings)
    if svg is not None:
        picture.save(Screen(Frame(seen, judged(seen), where)), svg)
    if face.is_json:
        face.document(document(seen, judged(seen)))
    elif svg is None:
        face.out.print(Screen(Frame(seen, judged(seen), where)))


def place(url: str) -> str:
    """Where the database is: without a password, and a file below this folder as seen from here."""
    scheme, _, path = url.partition(":///")
    if not scheme.startswith("sqlite"):
        return without_passwords(url)
    relative = os.path.relpath(path)
    return f"SQLite {path if relative.startswith('..') else relative}"


def document(seen: Overview, found: list[Concern]) -> dict[str, Any]:
    """One look as JSON."""
    total = asdict(seen.total) | {"success_rate": seen.total.success_rate} if seen.total else None
    return {
        "at": iso(seen.at),
        "window": seen.window,
        "calls_per_second": seen.calls_per_second,
        "attention": [asdict(one) for one in found],
        "total": total,
        "tools": [asdict(one) | {"success_rate": one.success_rate} for one in seen.tools],
        "failures": [asdict(one) for one in seen.failures],
        "workers": [{**_plain(asdict(one.worker)), "running": one.running} for one in seen.workers],
        "queues": [asdict(one) for one in seen.queues],
        "stuck": [asdict(one) for one in seen.stuck],
        "demoted": [_plain(asdict(one)) for one in seen.demoted],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: iso(value) if hasattr(value, "isoformat") else value for name, value in values.items()}
