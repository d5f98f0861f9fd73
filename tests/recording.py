"""A proxy that writes down every byte which passes, in both directions."""

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self


class RecordingProxy:
    """Listens on a unix socket, and speaks to a server on another one."""

    def __init__(self, here: Path, there: Path, record: Path) -> None:
        self._there = str(there)
        self._record = record.open("ab", buffering=0)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(here))
        self._listener.listen(64)
        self._open: list[socket.socket] = [self._listener]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._record.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:  # no deadline: the listener is closed at the end
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._there)
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError, ValueError):
            while data := source.recv(65_536):  # no deadline: it goes on until a side hangs up
                self._record.write(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
