"""What a check found."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is; only problems make the doctor's exit code 1."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the installation; where something is wrong, `way_out` says what to do."""

    level: Level
    subject: str
    said: str
    way_out: str = ""


def ok(subject: str, said: str) -> Finding:
    return Finding(Level.OK, subject, said)


def note(subject: str, said: str, way_out: str = "") -> Finding:
    return Finding(Level.NOTE, subject, said, way_out)


def problem(subject: str, said: str, way_out: str = "") -> Finding:
    return Finding(Level.PROBLEM, subject, said, way_out)
