"""How a child tells what its body reports: on a thread of its own, for a body may block the child's loop."""

import os
import threading
import time
from collections.abc import Callable, Sequence

from forge_tools.records import Told
from forge_tools.sandbox.reports import ReportBuffer
from workers.lanes.frames import Frame, fields_of

SEND_SECONDS = 0.05
"""Between two frames; the engine writes less often."""


class Telling:
    """There is no thread until a body reports for the first time."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send = send
        self._claim = ("", 0)
        self._buffer: ReportBuffer | None = None
        self._news = threading.Event()
        self._sending = threading.Lock()
        self.thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._be_silent)

    def begin(self, execution_id: str, attempt: int) -> ReportBuffer:
        """Make the buffer of the body that is about to start."""
        self._claim = execution_id, attempt
        self._buffer = ReportBuffer(self._hear, interval=SEND_SECONDS)
        return self._buffer

    def end(self) -> None:
        """Tell what is left: the body is over, and its outcome comes next."""
        with self._sending:
            buffer, self._buffer = self._buffer, None
            self._tell(buffer.close() if buffer is not None else [])

    def _hear(self) -> None:
        if self.thread is None:
            with self._sending:
                if self.thread is None:
                    self.thread = threading.Thread(target=self._send_for_ever, name="forge-reports", daemon=True)
                    self.thread.start()
        self._news.set()

    def _send_for_ever(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            with self._sending:
                buffer = self._buffer
                if buffer is not None:
                    self._tell(buffer.take())
                    if buffer.is_waiting:
                        self._news.set()
            time.sleep(SEND_SECONDS)

    def _tell(self, told: Sequence[Told]) -> None:
        if told:
            id_, attempt = self._claim
            values = [list(fields_of(one).values()) for one in told]
            self._send({"kind": "reported", "id": id_, "attempt": attempt, "told": values})

    def _be_silent(self) -> None:
        """In a copy of this process that a tool forked: the thread is not there, and a lock may be held for ever."""
        self._sending = threading.Lock()
        if self._buffer is not None:
            self._buffer.silence()
