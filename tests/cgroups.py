"""A cgroup (v2) of a test, in the group of the test or at the top, where more is offered: root may make one wherever there is cgroup v2."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forge_tools.sandbox.walls.cgroups import controllers

WAIT_SECONDS = 10.0


@contextmanager
def cgroup() -> Iterator[Path | None]:
    """Make a group that may be divided, and at the end kill and remove what is in it; None where this machine allows none."""
    made = next(filter(None, map(_made, _places())), None)
    try:
        yield made
    finally:
        if made is not None:
            _remove(made)


def offers(group: Path | None, name: str) -> bool:
    """Whether the kernel bounds that by groups here."""
    return group is not None and name in controllers(str(group))


def members(group: Path) -> list[int]:
    """The processes in a group and those below it."""
    files = (Path(folder) / "cgroup.procs" for folder, _, _ in os.walk(group))
    return [int(line) for file in files for line in file.read_text().split()]


def _places() -> list[Path]:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    own = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    tops = [Path(line.split()[4]) for line in mounts if " - cgroup2 " in line]
    places = [place for top in tops for place in (*(top / path.lstrip("/") for path in own), top)]
    return sorted(places, key=lambda place: len(controllers(str(place), "subtree_control")), reverse=True)


def _made(place: Path) -> Path | None:
    """Make one that processes of this test can be moved to, which some containers and users may not."""
    path = place / f"forge-test-{os.getpid()}-{time.monotonic_ns()}"
    with suppress(OSError):
        path.mkdir()
        if (pid := os.fork()) == 0:
            code = 1
            with suppress(OSError):
                (path / "cgroup.procs").write_text("0")
                code = 0
            os._exit(code)
        if os.waitpid(pid, 0)[1] == 0:
            return path
        path.rmdir()
    return None


def _remove(group: Path) -> None:
    with suppress(OSError):
        (group / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + WAIT_SECONDS
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    for folder, _, _ in os.walk(group, topdown=False):
        Path(folder).rmdir()
