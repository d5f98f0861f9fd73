"""How a child tells what its body reports: on a line and a thread of their own, for a body may block the child's loop."""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forge_tools.records import Told
from forge_tools.sandbox.reports import ReportBuffer
from workers.lanes.frames import HEADER, fields_of

SEND_SECONDS = 0.05
"""Between two frames; the engine writes less often."""

PATIENCE = 5.0
"""Seconds that an engine may take to hear a frame; then this process tells nothing more."""

logger = logging.getLogger(__name__)


class Telling:
    """The child's half. Nothing is there, no line and no thread, until a body reports for the first time."""

    def __init__(self, address: Path) -> None:
        self._address = address
        self._pid = os.getpid()
        self._claim = ("", 0)
        self._buffer: ReportBuffer | None = None
        self._sent = 0
        self._line: socket.socket | None = None
        self._is_mute = False
        self._news = threading.Event()
        self._sending = threading.Lock()
        self.thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._be_silent)

    def begin(self, execution_id: str, attempt: int) -> ReportBuffer:
        """Make the buffer of the body that is about to start."""
        self._claim, self._sent = (execution_id, attempt), 0
        self._buffer = ReportBuffer(self._hear, interval=SEND_SECONDS)
        return self._buffer

    def end(self) -> dict[str, Any]:
        """What the frame of the outcome has to say of it, if anything: what was not sent, and how many frames were."""
        with self._sending:
            buffer, self._buffer = self._buffer, None
            left = buffer.close() if buffer is not None else []
            if not (left or self._sent):
                return {}
            return {"reports": {"left": [_values(one) for one in left], "sent": self._sent}}

    def _hear(self) -> None:
        if self.thread is None:
            with self._sending:
                if self.thread is None:
                    self.thread = threading.Thread(target=self._send_for_ever, name="forge-reports", daemon=True)
                    self.thread.start()
        self._news.set()

    def _send_for_ever(self) -> None:
        while not self._is_mute:
            self._news.wait()
            self._news.clear()
            with self._sending:
                self._send_news()
            time.sleep(SEND_SECONDS)

    def _send_news(self) -> None:
        buffer = self._buffer
        if buffer is None:
            return
        try:
            line = self._line = self._line or self._connected()
            told = buffer.take()
            if told:
                self._sent += 1
                line.sendall(_frame({"of": self._claim, "told": [_values(one) for one in told]}))
        except OSError as error:  # the engine is gone, and this process with it in a moment
            logger.warning("What tools report here is heard no more", extra={"error": str(error)})
            self._is_mute = True
        if buffer.is_waiting:
            self._news.set()

    def _connected(self) -> socket.socket:
        """Connect, and wait until the engine listens: the outcome comes by another line, and is not to be faster."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(PATIENCE)
        line.connect(str(self._address))
        line.sendall(_frame({"reports": self._pid}))
        if not line.recv(1):
            raise ConnectionResetError("The engine does not listen")
        return line

    def _be_silent(self) -> None:
        """In a copy of this process that a tool forked: the thread is not there, and a lock may be held for ever."""
        self._sending = threading.Lock()
        if self._buffer is not None:
            self._buffer.silence()


def pass_on(frame: dict[str, Any], claim: tuple[str, int], buffer: Callable[[], ReportBuffer]) -> None:
    """Hand on what a child sent of that body; code that is not trusted may have written it."""
    if frame.get("of") == list(claim):
        pass_on_told(frame.get("told", ()), buffer)


def pass_on_told(told: Sequence[Sequence[Any]], buffer: Callable[[], ReportBuffer]) -> None:
    """Do so for what is known to be of it."""
    try:
        for values in told:
            buffer().pass_on(Told(*values))
    except (TypeError, ValueError) as error:
        logger.warning("A tool's process sent what is no report", extra={"error": str(error)})


def _values(told: Told) -> list[Any]:
    return list(fields_of(told).values())


def _frame(value: dict[str, Any]) -> bytes:
    body = json.dumps(value).encode()
    return HEADER.pack(len(body)) + body
