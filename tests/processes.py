"""Runs the tests of a session in several processes, which are forked after collection: `--processes`.

To import and collect everything takes longer than most files of tests do, and so it happens once. Files are handed out
one by one, and the tests of a file stay together. Where a process dies, the test it was at has failed and another goes on.
"""

import os
import signal
import sys
import traceback
from collections import deque
from functools import partial
from itertools import chain, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import NoReturn

import pytest
from _pytest.capture import FDCapture

Places = deque[int]
"""Of some tests among all of the session."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="how many share the files of tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("processes")
    if count < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    Processes(session, count).run()
    return True


class Processes:
    """Hands the tests out, and has pytest hear their reports as if they ran here."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._config = session.config
        self._files = _files(session.items)
        self._count = min(count, len(self._files))
        self._running: dict[Connection, _Process] = {}

    def run(self) -> None:
        self._config._tmp_path_factory.getbasetemp()  # noqa: SLF001  whoever asks first empties it: not one of ours
        try:
            for _ in range(self._count):
                self._fork()
            for heard in iter(lambda: self._running and wait([*self._running]), {}):
                for connection in heard:
                    self._hear(self._running[connection])
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
        finally:
            for process in self._running.values():
                os.kill(process.pid, signal.SIGINT)
                process.connection.close()  # an interrupt may be lost, in what the interpreter clears away
            for process in self._running.values():
                os.waitpid(process.pid, 0)

    def _fork(self) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            for other in (ours, *self._running):
                other.close()
            serve(self._session, theirs)
        theirs.close()
        self._running[ours] = _Process(pid, ours)

    def _hear(self, process: "_Process") -> None:
        try:
            word, what = process.connection.recv()
        except (EOFError, ConnectionResetError):
            self._bury(process)
            return
        match word:
            case "next":
                file = self._files.popleft() if self._files else Places()
                process.left.extend(file)
                process.connection.send(file)
            case "at":
                process.at = process.left.popleft()
            case "report":
                report = self._config.hook.pytest_report_from_serializable(config=self._config, data=what)
                self._config.hook.pytest_runtest_logreport(report=report)

    def _bury(self, process: "_Process") -> None:
        del self._running[process.connection]
        process.connection.close()
        _, status = os.waitpid(process.pid, 0)
        if not status:
            return
        text = f"the process that ran it ended with code {os.waitstatus_to_exitcode(status)}"
        item = self._session.items[process.at]
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        if process.left:
            self._files.appendleft(process.left)
        if self._files:
            self._fork()


class _Process:
    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        # the last test of a file begins when the next file is known, since fixtures may serve both
        self.left = Places()
        self.at = 0


def serve(session: pytest.Session, connection: Connection) -> NoReturn:
    """Be one of the processes, to its end."""
    code = 1
    try:
        _settle(session.config, connection)
        _run(session, connection)
        code = 0
    except (KeyboardInterrupt, EOFError, ConnectionError):  # nobody is told any more
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        session._setupstate.teardown_exact(None)  # noqa: SLF001  as pytest does at the end of a session
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _settle(config: pytest.Config, connection: Connection) -> None:
    plugins = config.pluginmanager
    reporter = plugins.unregister(name="terminalreporter")
    colours = reporter._tw  # noqa: SLF001  pytest asks for them there
    plugins.register(SimpleNamespace(_tw=colours), "terminalreporter")
    plugins.register(_Reports(config, connection))
    capture = plugins.get_plugin("capturemanager")._global_capturing  # noqa: SLF001  its files have no public name
    for one in (capture.out, capture.err):
        if isinstance(one, FDCapture):  # all processes would write to the same file, and modules may hold its object
            with TemporaryFile(buffering=0) as own:
                os.dup2(own.fileno(), one.tmpfile.fileno())
    folders = config._tmp_path_factory  # noqa: SLF001  pytest has no other way to give a process its own
    folders._basetemp = folders.mktemp("p")  # noqa: SLF001  as above


class _Reports:
    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))


def _run(session: pytest.Session, connection: Connection) -> None:
    places = chain.from_iterable(iter(partial(_next, connection), Places()))
    for place, following in pairwise(chain(places, [None])):
        connection.send(("at", None))
        item = session.items[place]
        nextitem = None if following is None else session.items[following]
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)


def _next(connection: Connection) -> Places:
    connection.send(("next", None))
    return connection.recv()


def _files(items: list[pytest.Item]) -> deque[Places]:
    files: dict[Path, Places] = {}
    for place, item in enumerate(items):
        files.setdefault(item.path, Places()).append(place)
    return deque(files.values())
