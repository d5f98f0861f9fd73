"""How PostgreSQL runs the statements of a worker and a client: the plans it used, from its own log."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.scene import Scene
from tests import services

GROWING = {"executions", "execution_queue", "execution_attempts", "execution_events"}
"""The tables in which a plan must find its rows by an index."""

SETTINGS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "log",
}
ENTRY = re.compile(r"LOG:  duration: [\d.]+ ms  plan:\n((?:\t.*\n)+)")

Plans = Mapping[str, frozenset[str]]
"""Of each statement, every plan that was used."""


def plans_of(scene: Scene, database_url: str, work: Callable[[], None]) -> Plans:
    """Let `work` open new connections and run its statements; nobody else may connect to that database meanwhile."""
    name = urlsplit(database_url).path[1:]
    log = scene.folder / "postgres" / "postgres.log"
    for setting, value in SETTINGS.items():
        services.admin(scene.administration, f"ALTER DATABASE \"{name}\" SET {setting} = '{value}'")
    start = log.stat().st_size
    try:
        work()
    finally:
        services.admin(scene.administration, f'ALTER DATABASE "{name}" RESET ALL')
    return plans_in(log, start)


def scans(plans: Plans) -> list[str]:
    """The statements that read all of a growing table."""
    return [statement for statement, used in plans.items() if any(_reads_all(plan) for plan in used)]


def changes(one: Plans, other: Plans) -> list[str]:
    """The statements of both that read growing tables, and did not run in the same ways."""
    return [
        statement
        for statement in one.keys() & other.keys()
        if one[statement] != other[statement] and any(f"on {table}" in str(other[statement]) for table in GROWING)
    ]


def plans_in(log: Path, start: int) -> Plans:
    """The plans that a log of PostgreSQL has behind that byte."""
    with log.open("rb") as lines:
        lines.seek(start)
        text = lines.read().decode(errors="replace")
    found: dict[str, set[str]] = {}
    for entry in ENTRY.finditer(text):
        plan = json.loads(entry[1])
        statement = " ".join(str(plan["Query Text"]).split())
        found.setdefault(statement, set()).add("; ".join(_steps(plan["Plan"])))
    return {statement: frozenset(used) for statement, used in found.items()}


def _steps(node: Mapping[str, Any]) -> Iterator[str]:
    place = node.get("Relation Name", "")
    yield " ".join(word for word in (node["Node Type"], node.get("Index Name", ""), place and f"on {place}") if word)
    for below in node.get("Plans", ()):
        yield from _steps(below)


def _reads_all(plan: str) -> bool:
    return any(f"Seq Scan on {table}" in step for step in plan.split("; ") for table in GROWING)
