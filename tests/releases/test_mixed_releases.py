"""The last release and this tree at work on one database and one broker, as hosts that are upgraded one by one."""

import json
import os
import select
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import ROOT, WorkerProcess, copy_packages
from tests.waiting import PATIENCE

HERE = Path(__file__).parent
MOST_BYTES = 1_000_000
ALONE, TOGETHER = 20, 180
SECONDS = 60.0
ALONE_SECONDS = 8.0
"""Several times what lone calls take, and less than if each had to be found by a worker that was not told of it."""
HEARTBEAT = 3.0

INCOMPATIBLE = {
    "secrets are encrypted for another purpose": ("forge_tools/secrets/encryption.py", "parameters 1", "parameters 2"),
    "messages carry names instead of pairs": ("forge_tools/broker/message.py", "[[wakeups]", "[[[one[::-1] for one in wakeups]]"),
    "queues of the broker have other names": ("forge_tools/broker/message.py", 'f"forge.{queue}', 'f"forge2.{queue}'),
    "notifications go to other channels": ("forge_tools/broker/base.py", '"forge:notifications:"', '"forge:notes:"'),
    "a column has another name": ("forge_tools/storage/models.py", '"reply_to"', '"replies_to"'),
}  # fmt: skip
"""Changes of which each keeps a release from working with the one before: the file, what stands there, what would."""


class Release:
    """The packages of one release, and programs that are started with them."""

    def __init__(self, packages: Path, home: Path, broker_url: str) -> None:
        self._home = home
        own = {
            "HEARTBEAT": HEARTBEAT,
            "HOME": home,
            "WORKSPACE": home,
            "BROKER_URL": broker_url,
            "DATABASE_URL": f"sqlite:///{home / 'forge.db'}",
        }
        settings = {f"FORGE_{name}": str(value) for name, value in own.items()}
        self._environment = {**os.environ, **settings, "PYTHONPATH": f"{packages}:{HERE}"}

    def migrate(self) -> None:
        for words in (["db", "upgrade"], ["keys", "new", "--if-none"]):
            argv = [sys.executable, "-P", "-m", "forge_tools.cli", *words]
            done = subprocess.run(
                argv, env=self._environment, cwd=self._home, capture_output=True, text=True, timeout=SECONDS
            )
            assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def work(self, name: str) -> Iterator[WorkerProcess]:
        """A worker that serves."""
        argv = ["-m", "workers", "--lane", "async", "--no-builtins", "--tools", "greeting:TOOLS"]
        with (self._home / f"{name}.log").open("wb") as log, self._started(argv, stdout=log, stderr=log) as process:
            worker = WorkerProcess(process, Path(log.name))
            worker.wait_ready()
            yield worker

    @contextmanager
    def call(self) -> Iterator["subprocess.Popen[bytes]"]:
        """An agent; it makes some calls at once when it is sent a line."""
        argv = [str(HERE / "agent.py"), str(ALONE), str(TOGETHER)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        with (self._home / "agent.log").open("wb") as log, self._started(argv, stderr=log, **pipes) as process:
            yield process

    @contextmanager
    def _started(self, argv: list[str], **streams: Any) -> Iterator["subprocess.Popen[bytes]"]:
        argv = [sys.executable, "-P", *argv]
        with subprocess.Popen(argv, env=self._environment, cwd=self._home, **streams) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the newest release; until there is one, those of this tree."""
    folder = tmp_path_factory.mktemp("before")
    wheels = sorted(HERE.glob("*.whl"), key=lambda wheel: tuple(map(int, wheel.name.split("-")[1].split("."))))
    if not wheels:
        copy_packages(folder)
    for newest in wheels[-1:]:
        with zipfile.ZipFile(newest) as wheel:
            wheel.extractall(folder)
    return folder


def test_wheels_of_releases_stay_small() -> None:
    assert all(wheel.stat().st_size < MOST_BYTES for wheel in HERE.glob("*.whl"))


@pytest.mark.parametrize("who_calls", ["the one before", "this one"])
@pytest.mark.parametrize("who_migrates", ["the one before", "this one"])
def test_two_releases_work_together_and_one_goes_on_where_the_other_is_killed(
    who_calls: str, who_migrates: str, before: Path, tmp_path: Path, valkey_url: str
) -> None:
    releases = {
        "the one before": Release(before, tmp_path, valkey_url),
        "this one": Release(ROOT, tmp_path, valkey_url),
    }
    releases[who_migrates].migrate()
    caller = releases.pop(who_calls)
    [other] = releases.values()

    assert answers_of(caller, other, tmp_path) == expected()


@pytest.mark.parametrize("change", INCOMPATIBLE)
def test_what_would_keep_them_from_it_is_noticed(change: str, before: Path, tmp_path: Path, valkey_url: str) -> None:
    file, there, instead = INCOMPATIBLE[change]
    packages, home = tmp_path / "packages", tmp_path / "home"
    home.mkdir()
    copy_packages(packages)
    text = (packages / file).read_text()
    assert there in text
    (packages / file).write_text(text.replace(there, instead))
    changed, other = Release(packages, home, valkey_url), Release(before, home, valkey_url)
    changed.migrate()

    with pytest.raises((AssertionError, Late)):
        assert answers_of(changed, other, home) == expected()


class Late(Exception):
    """Not all answers came in time."""


def answers_of(caller: Release, other: Release, home: Path) -> list[str]:
    """Call while only the other release has a worker; then while both have, and that of the other is killed."""
    with ExitStack() as stack:
        others = stack.enter_context(other.work("other"))
        agent = stack.enter_context(caller.call())
        answers = read(agent, ALONE, ALONE_SECONDS)
        stack.enter_context(caller.work("own"))
        agent.stdin.write(b"\n")
        answers += read(agent, TOGETHER // 3)
        others.kill()
        answers += read(agent, TOGETHER - TOGETHER // 3)
        assert agent.wait(SECONDS) == 0
    assert not any("not one of ours" in file.read_text() for file in home.glob("*.log"))
    return sorted(answers)


def read(agent: "subprocess.Popen[bytes]", count: int, seconds: float = SECONDS) -> list[str]:
    """Read so many answers.

    Raises:
        Late: they did not come in time.
    """
    assert agent.stdout is not None
    answers: list[str] = []
    deadline = time.monotonic() + seconds * PATIENCE
    for _ in range(count):
        if not select.select([agent.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise Late(f"{len(answers)} of {count} came")
        answers.append(json.loads(agent.stdout.readline() or b'"the agent has ended"'))
    return answers


def expected() -> list[str]:
    names = [f"alone {number}" for number in range(ALONE)] + [f"together {number}" for number in range(TOGETHER)]
    return sorted(f"hello {name}, 3" for name in names)
