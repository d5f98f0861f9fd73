"""The control socket of a command: its supervisor reports on it, and ends the command's tree once it is shut down."""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from forge_tools.sandbox.web.egress import Egress

_ENDS = {"exit", "signal", "error"}


class ControlLine:
    """Collects the reports as `facts` and calls `changed` after each, on the running loop.

    `egress` serves the proxy of the command, if its network has one; it belongs to whoever gave it.
    """

    def __init__(self, control: socket.socket, changed: Callable[[], None], egress: Egress | None = None) -> None:
        self.facts: dict[str, int] = {}
        self.is_closed = False
        """Whether nothing of the tree is left, or its supervisor was killed and the kernel killed the tree with it."""
        self._control = control
        self._changed = changed
        self._egress = egress
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        control.setblocking(False)  # noqa: FBT003  the method takes no keyword
        self._loop.add_reader(control, self._hear)

    @property
    def has_ended(self) -> bool:
        """Whether the command itself is over, or never started."""
        return bool(self.facts.keys() & _ENDS)

    def end(self) -> None:
        """Have the tree ended."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._loop.remove_reader(self._control)
        self._control.close()

    def _hear(self) -> None:
        try:
            data, handles, _, _ = socket.recv_fds(self._control, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            data, handles = b"", []
        for handle in handles:
            listener = socket.socket(fileno=handle)
            if self._egress is None:
                listener.close()
            else:
                self._egress.serve(listener)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            kind, number = line.split()
            self.facts[kind.decode()] = int(number)
        if not data or "gone" in self.facts:
            self.is_closed = True
            if not self.facts.keys() & _ENDS:
                self.facts["signal"] = (
                    signal.SIGKILL
                )  # somebody killed its supervisor, and the kernel killed the command
            self._loop.remove_reader(self._control)
        self._changed()
