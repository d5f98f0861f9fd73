"""Pages with terminal sessions: the sessions run on a real stack, and the pages show what was printed.

`python -m tests.recorded README.md` writes what is printed now into a page; `tests/e2e/test_recorded.py` holds it to that.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forge_tools.sandbox.processes.trees import descendants
from tests.e2e.cli_driver import MODULE, warm_command
from tests.waiting import is_alive, wait_until

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/tutorial.md")
READY = re.compile(r"Ready\.|Worker ready")
SAVED = "New code serves"

_BLOCK = re.compile(r"^```(?P<kind>python|console)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<name>[a-z_]+\.py)\n")
_BACKGROUND = re.compile(r"(?P<command>.*) > (?P<log>[a-z]+\.log) &")
_CHANGING = (
    (r"[0-9a-f]{8}-[0-9a-f-]{9,27}", "ID"),
    (r"\d\d:\d\d:\d\d(\.\d+|Z)( \d+[smh])?", "TIME"),
    (r"\b\d+(\.\d+)? ?m?s\b", "TOOK"),
    (r"\b(pid|process|kill) \d+", r"\1 PID"),
    (r"[ ─]+", " "),
    (r"…", ""),
    (r" $", ""),
)


class Terminal:
    """A shell in a folder of its own, where `forge-tools` is the one of this tree; what is run to its end is a fork."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FORGE_", "COV_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        state = str(folder.with_name(f"{folder.name}-state"))
        self._environment = {
            **kept,
            "PATH": path,
            "XDG_STATE_HOME": state,
            "COLUMNS": "120",
            "FORGE_HOSTNAME": "first",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        self._jobs: list[subprocess.Popen[bytes]] = []

    def run(self, command: str) -> str:
        """What a command prints; one that ends in `&` is waited for until it serves."""
        if found := _BACKGROUND.fullmatch(command):
            self._begin(found["command"], self.folder / found["log"])
            return ""
        watched = self.folder / "dev.log"
        served = watched.read_text().count(SAVED) if watched.exists() else None
        script = f"exec 2>&1\n{command}"
        done = warm_command().shell(script, MODULE, cwd=self.folder, env=self._environment, timeout=120)
        if served is not None and command.startswith("sed -i"):
            wait_until(lambda: watched.read_text().count(SAVED) > served, 60, watched.read_text)
        return done.stdout

    def _begin(self, command: str, log: Path) -> None:
        with log.open("wb") as output:
            job = subprocess.Popen(
                ["bash", "-c", f"exec env {command}"],
                cwd=self.folder,
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        self._jobs.append(job)
        wait_until(lambda: READY.search(log.read_text()) or job.poll() is not None, 90, log.read_text)
        assert job.poll() is None, log.read_text()

    def close(self) -> None:
        """Stop what goes on in the background; nothing of it is left."""
        tree = [process.pid for job in self._jobs for process in descendants(job.pid)]
        for job in reversed(self._jobs):
            job.send_signal(signal.SIGTERM)
        for job in self._jobs:
            job.wait(60)
        assert [pid for pid in tree if is_alive(pid)] == []


@contextmanager
def terminal() -> Iterator[Terminal]:
    """A terminal in a temporary folder, closed at the end."""
    with tempfile.TemporaryDirectory(prefix="forge-page-") as folder:
        (Path(folder) / "project").mkdir()
        shown = Terminal(Path(folder) / "project")
        try:
            yield shown
        finally:
            shown.close()


def played(page: str) -> str:
    """The page with what its sessions print now. Its Python files are there from the start."""

    def play(found: re.Match[str]) -> str:
        if found["kind"] == "python":
            return found[0]
        commands = [line.removeprefix("$ ") for line in found["text"].splitlines() if line.startswith("$ ")]
        parts = [f"$ {command}\n{_lines(shown.run(command))}" for command in commands]
        return f"```console\n{''.join(parts)}```"

    with terminal() as shown:
        for found in _BLOCK.finditer(page):
            if found["kind"] == "python" and (name := _FILE.match(found["text"])):
                (shown.folder / name["name"]).write_text(found["text"])
        return _BLOCK.sub(play, page)


def settled(page: str) -> str:
    """The page without what is another at each run: ids, times, how long something took."""
    for pattern, name in _CHANGING:
        page = re.sub(pattern, name, page, flags=re.MULTILINE)
    return page


def _lines(printed: str) -> str:
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        (ROOT / name).write_text(played((ROOT / name).read_text()))
