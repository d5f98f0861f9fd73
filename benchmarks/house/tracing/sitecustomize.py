"""Notes every function of this project that starts, and every SQL statement; Python imports this module at its start.

One line each in a file per process: the time in nanoseconds, the thread, the kind, what it is.
"""

import dis
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = f"{Path(__file__).resolve().parents[3]}/"
OURS = tuple(f"{ROOT}{package}/" for package in ("forge_tools", "workers"))
RESUME = dis.opmap["RESUME"]
MADE_BY_DATACLASS = "<string>"

_folder = os.environ["HOUSE_TRACE"]
_names: dict[CodeType, str] = {}
_bytes: dict[CodeType, bytes] = {}


def note(kind: str, what: str) -> None:
    # Each time anew: what forks workers closes all that was open before.
    notes = os.open(f"{_folder}/{os.getpid()}.trace", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(notes, f"{time.monotonic_ns()}\t{os.getpid()}.{threading.get_ident()}\t{kind}\t{what}\n".encode())
    os.close(notes)


def trace(frame: FrameType, event: str, _argument: object) -> None:
    if event != "call":
        return
    code = frame.f_code
    if code.co_filename == MADE_BY_DATACLASS and code.co_name == "__init__":
        note_record(frame)
        return
    name = _names.get(code)
    if name is None:
        _names[code] = name = name_of(code)
    if name and is_start(frame, code):
        note("call", name)


def name_of(code: CodeType) -> str:
    """Return the file and the function, or nothing if it is not ours or not a separate function."""
    is_ours = code.co_filename.startswith(OURS) and not code.co_name.startswith("<")
    return f"{code.co_filename.removeprefix(ROOT)}\t{code.co_qualname}" if is_ours else ""


def is_start(frame: FrameType, code: CodeType) -> bool:
    """Whether the function begins: a coroutine that continues is also reported as a call."""
    at = frame.f_lasti
    if at < 0:
        return True
    if code not in _bytes:
        _bytes[code] = code.co_code
    return _bytes[code][at] == RESUME and not _bytes[code][at + 1]


def note_record(frame: FrameType) -> None:
    """Note the class of a record that is created."""
    made = type(frame.f_locals.get("self"))
    if made.__module__.startswith(("forge_tools.", "workers.")):
        note("record", f"{made.__module__}.{made.__qualname__}")


def connect_and_listen(*words: Any, **more: Any) -> sqlite3.Connection:
    connection: sqlite3.Connection = connect(*words, **more)
    connection.set_trace_callback(lambda statement: note("sql", " ".join(statement.split())[:200]))
    return connection


connect: Any = sqlite3.connect
for module in (sqlite3, sqlite3.dbapi2):
    vars(module)["connect"] = connect_and_listen
threading.setprofile(trace)
sys.setprofile(trace)
