"""The wheel, installed in an otherwise empty environment, does the whole job from folders outside the checkout."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.fleet import ROOT
from tests.linked import link
from tests.waiting import is_alive, wait_until

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the built wheel and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source, venv = folder / "source", folder / "venv"
    files = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, files.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "--python", venv, "install", "--no-deps", wheel], check=True)
    [site] = venv.glob("lib/*/site-packages")
    [ours] = [one for one in distributions(path=[str(site)]) if one.name == "forge-tools"]
    linked: set[str] = set()
    for name, extras in required(ours, ""):
        link_with(name, extras, site, linked)
    return venv / "bin"


def required(by: Distribution, *extras: str) -> list[tuple[str, tuple[str, ...]]]:
    """What a distribution with those extras requires here, each with the extras that are asked of it."""
    requirements = [Requirement(one) for one in by.requires or ()]
    markers = [(one, one.marker) for one in requirements]
    meant = [one for one, marker in markers if not marker or any(marker.evaluate({"extra": it}) for it in extras)]
    return [(one.name, ("", *one.extras)) for one in meant]


def link_with(name: str, extras: tuple[str, ...], site: Path, linked: set[str]) -> None:
    """Have a distribution of this environment there, and what it requires."""
    key = f"{name.lower()} {extras}"
    if key in linked:
        return
    linked.add(key)
    found = distribution(name)
    link(found, site)
    for other, its_extras in required(found, *extras):
        link_with(other, its_extras, site, linked)


class User:
    """Somebody who has installed the wheel, in a folder of their own."""

    def __init__(self, installed: Path, folder: Path) -> None:
        self._program = str(installed / "forge-tools")
        self._folder = folder
        self._environment = {"PATH": f"{installed}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        where: dict[str, Any] = {"cwd": self._folder, "env": self._environment}
        return subprocess.run([self._program, *words], capture_output=True, text=True, timeout=90, **where)

    @contextmanager
    def serving(self, *words: str) -> Iterator[Path]:
        """A stack, once it is ready; yields its log, and nothing of it is left afterwards."""
        log = self._folder / "stack.log"
        with log.open("wb") as said:
            where: dict[str, Any] = {"cwd": self._folder, "env": self._environment, "stdout": said, "stderr": said}
            stack = subprocess.Popen([self._program, *words], **where)
        try:
            wait_until(lambda: "Ready." in log.read_text() or stack.poll() is not None, 60, log.read_text)
            yield log
        finally:
            stack.send_signal(signal.SIGTERM)
            stack.wait(60)
        assert not is_alive(stack.pid)


def test_the_wheel_runs_the_stack_from_a_folder_with_a_workers_package_of_its_own(
    installed: Path, tmp_path: Path
) -> None:
    folder = tmp_path
    (folder / "workers").mkdir()
    (folder / "workers" / "__init__.py").write_text("raise SystemExit('the wrong workers package was imported')\n")
    (folder / "note.txt").write_text("the needle is here\n")
    user = User(installed, folder)

    with user.serving("up") as log:
        found = user.run("run", "Grep", "pattern=needle", "output_mode=content")
        shell = user.run("run", "run_command", "command=echo from $((40 + 2))")
        history = user.run("history", "--output", "json")

    assert "note.txt:1:the needle is here" in found.stdout, found.stderr + log.read_text()
    assert "from 42" in shell.stdout, shell.stderr
    assert history.stdout.count('"succeeded"') == 2


def test_a_new_user_in_an_empty_folder_sees_the_line_that_failed_by_one_command_and_mends_it(
    installed: Path, tmp_path: Path
) -> None:
    user, tools = User(installed, tmp_path), tmp_path / "mytools.py"
    assert user.run("init").returncode == 0
    written = tools.read_text()
    line = 1 + written.splitlines().index('    return text.upper() + "!"')

    with user.serving("dev") as log:

        def save(text: str) -> float:
            served, started = log.read_text().count("New code serves"), time.monotonic()
            tools.write_text(text)
            wait_until(lambda: log.read_text().count("New code serves") > served, 60, log.read_text)
            return time.monotonic() - started

        assert user.run("run", "shout", "text=hello").stdout == "HELLO!\n"
        save(written.replace("upper", "uper"))
        failed = user.run("run", "shout", "text=hello")
        started = time.monotonic()
        shown = user.run("show", "@last")
        seen = time.monotonic() - started
        saved = save(written)
        mended = user.run("run", "shout", "text=again")

    said = f"AttributeError: 'str' object has no attribute 'uper' (mytools.py:{line} in shout)"
    assert (failed.returncode, said in failed.stderr) == (1, True), failed.stderr
    assert f"mytools.py:{line} in shout\n      return text.uper()" in shown.stdout, shown.stdout + shown.stderr
    assert mended.stdout == "AGAIN!\n"
    print(f"from a failed call to its line: {seen:.1f} s; from save to new code: {saved:.1f} s")


def test_a_shadowing_workers_package_is_refused_by_name(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "FORGE_HOME": str(tmp_path / "home")}

    command = [str(installed / "forge-tools"), "worker", "--lane", "async"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    assert done.returncode == 78
    assert str(tmp_path / "workers") in done.stderr
    assert "Traceback" not in done.stderr
