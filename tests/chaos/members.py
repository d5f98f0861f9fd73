"""The processes of a run, by the marks in their environment."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUN_VARIABLE = "CHAOS_RUN"
"""Marks every process of one run."""
MARK_VARIABLE = "CHAOS_MARK"
"""Names the call whose tool started a process."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a run; `mark` names the call whose tool started it, where one did."""

    pid: int
    command: str
    mark: str | None


def members(run: str) -> list[Member]:
    """Every process that carries the mark of that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                variables = dict(
                    one.split(b"=", 1) for one in (entry / "environ").read_bytes().split(b"\0") if b"=" in one
                )
                if variables.get(RUN_VARIABLE.encode()) == run.encode():
                    mark = variables.get(MARK_VARIABLE.encode())
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    found.append(Member(int(entry.name), command, mark.decode() if mark else None))
    return found
