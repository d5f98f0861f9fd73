"""Logging of our programs: one record per line, as text or JSON, in UTC, with the ids of the call it concerns."""

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from forge_tools.model.scope import SCOPE

Form = Literal["text", "json"]

_OURS = ("forge_tools.", "workers.")
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "data", "color_message"}
"""Fields that are not data; `color_message` is the message once more, as uvicorn adds it for terminals."""


class Writable(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> object: ...


class CallLog(logging.Handler):
    """Records with each call what its body logs, whatever other handlers do. Our own messages about it are recorded already."""

    def emit(self, record: logging.LogRecord) -> None:
        scope = SCOPE.get()
        if scope is None or scope.reporter is None or f"{record.name}.".startswith(_OURS):
            return
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  the arguments do not fit their message; the program's own log reports it
            return
        name = "" if record.name.startswith("tool.") else f"{record.name}: "
        scope.emit(f"{name}{text.rstrip()}\n", "log", record.levelno)


def set_up(level: str | int, form: Form, stream: Writable) -> None:
    """Log to `stream` from here on, replacing any earlier setup."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if form == "json" else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(add_call)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def add_call(record: logging.LogRecord) -> bool:
    """Add the ids of the call whose code wrote the record."""
    scope = SCOPE.get()
    if scope is not None:
        for name, value in scope.facts().items():
            vars(record).setdefault(name, value)
    return True


class _Text(logging.Formatter):
    """Constant messages followed by their data, as `name=value`."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        data = " ".join(f"{name}={value!r}" for name, value in _data(record).items())
        return f"{super().format(record)} {data}".rstrip()


class _Json(logging.Formatter):
    """One object per line, with the data among its fields; values that JSON cannot represent by their `repr`."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_data(record),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=repr)


def _data(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _KNOWN}
