"""What bodies of the demo did, counted in a file, independently of SQL and the broker."""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

Mark = Literal["start", "end"]


def note(log: str, key: str, mark: Mark) -> None:
    """Append one line in one write, which no other process can tear."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"{key} {mark} {os.getpid()}\n".encode())
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Effects:
    """The processes that started a key's body, and those that completed it; oldest first."""

    starts: dict[str, list[int]]
    ends: dict[str, list[int]]

    @classmethod
    def read(cls, log: Path) -> Self:
        marks: dict[str, dict[str, list[int]]] = {"start": defaultdict(list), "end": defaultdict(list)}
        for line in log.read_text().splitlines() if log.exists() else []:
            key, mark, pid = line.split()
            marks[mark][key].append(int(pid))
        return cls(**{f"{mark}s": dict(found) for mark, found in marks.items()})

    def running(self) -> dict[str, int]:
        """Keys whose last body has not completed, each with its process."""
        return {key: pids[-1] for key, pids in self.starts.items() if len(pids) > len(self.ends.get(key, []))}
