"""A pytest plugin that keeps what each test ran: how long it took, how it ended, and which lines of the product it executed."""

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

FOLDER, UNTRACED = "FORGE_TESTS_TRACES", "FORGE_TESTS_UNTRACED"
PRODUCT = ("forge_tools", "workers")


class Tracing:
    """For each file of tests there is one of traces, a line of JSON per test; one process runs all tests of a file."""

    def __init__(self, config: pytest.Config) -> None:
        self._untraced = tuple(os.environ.get(UNTRACED, "").split())
        self._folder = Path(os.environ[FOLDER])
        self._seconds = 0.0
        self._failed = False
        # In memory: tests fork, close descriptors and change users, which a file of coverage's does not survive.
        self._root = config.rootpath
        product = [f"{self._root / package}/*" for package in PRODUCT]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=product)
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._coverage.set_option("run:core", "ctrace")  # what Python 3.14 has by default cannot tell tests apart

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._seconds, self._failed = 0.0, False
        traced = not item.nodeid.startswith(self._untraced)
        if traced:
            self._coverage.start()
            self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            if traced:
                self._coverage.stop()
            self._write(item.nodeid, traced)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        self._failed |= not report.passed

    def _write(self, test: str, traced: bool) -> None:
        entry: dict[str, object] = {"test": test, "seconds": round(self._seconds, 3), "failed": self._failed}
        if traced:
            data = self._coverage.get_data()
            data.set_query_context(test)
            entry["lines"] = {
                Path(file).relative_to(self._root).as_posix(): sorted(lines)
                for file in data.measured_files()
                if (lines := data.lines(file))
            }
        with (self._folder / traces_of(test.partition("::")[0])).open("a") as file:
            file.write(json.dumps(entry) + "\n")


def traces_of(file: str) -> str:
    """The name of the file of traces."""
    return f"{file.replace('/', '.')}.jsonl"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tracing(config))
