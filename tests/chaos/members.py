"""The processes of a run, by the marks in their environment."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUN_VARIABLE = "CHAOS_RUN"
"""Marks every process of one run."""
MARK_VARIABLE = "CHAOS_MARK"
"""Names the call whose tool started a process."""
MARK = f"{MARK_VARIABLE}=".encode()


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a run; `mark` names the call whose tool started it, where one did."""

    pid: int
    command: str
    mark: str | None


def members(run: str) -> list[Member]:
    """Every process that carries the mark of that run."""
    found = []
    said = f"{RUN_VARIABLE}={run}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if said in variables:
                    mark = next((one.partition(b"=")[2] for one in variables if one.startswith(MARK)), None)
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    found.append(Member(int(entry.name), command, mark.decode() if mark else None))
    return found
