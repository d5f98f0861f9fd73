"""What the doctor says about connections to PostgreSQL, and about walls and limits of this machine."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from forge_tools.cli.checks import Level, check_machine
from forge_tools.cli.doctor import check_connections
from forge_tools.config import Settings
from forge_tools.sandbox.walls.namespaces import limits_processes
from forge_tools.sandbox.walls.probe import given
from forge_tools.storage.connection.pool import MOST_OF_ONE, Connections, role_setting
from tests.cgroups import cgroup, offers
from tests.walled import without

DIRECT = Settings(database_url="postgresql://forge@db/tools")
POOLED = Settings(database_url="postgresql://forge@pooler/tools", database_pooler="transaction")


@pytest.mark.parametrize(
    ("most", "workers", "level"),
    [(97, 4, Level.OK), (97, 6, Level.NOTE), (97, 45, Level.PROBLEM), (9, 0, Level.PROBLEM)],
)
def test_what_workers_need_is_compared_with_what_the_server_takes(most: int, workers: int, level: Level) -> None:
    found = check_connections(Connections(most, 14, 4, 8000), workers, DIRECT)
    assert found.level is level
    assert found.said.startswith(f"14 of {most} are open, 4 of them by forge-tools")
    assert found.said.endswith(f"{10 + 2 * workers} are needed, and up to {10 + MOST_OF_ONE * workers} under load")
    assert ("FORGE_DATABASE_POOLER=transaction" in found.way_out) is (level is not Level.OK)


@pytest.mark.parametrize(
    ("limit", "level", "said"),
    [(8_000, Level.OK, "ends after 8 s"), (0, Level.PROBLEM, "never ends"), (60_000, Level.PROBLEM, "ends after 60 s")],
)
def test_a_role_behind_a_pooler_needs_a_limit_of_its_own(limit: int, level: Level, said: str) -> None:
    found = check_connections(Connections(97, 200, 4, limit), 90, POOLED)
    assert (found.level, said in found.said) == (level, True)
    wanted = 'ALTER ROLE "forge" IN DATABASE "tools" SET statement_timeout = \'8s\'; then have the pooler RECONNECT.'
    assert found.way_out == ("" if level is Level.OK else wanted)


def test_names_in_the_statement_for_the_role_are_quoted() -> None:
    url = "postgresql://a%22b:secret@h/x%20y?pooler=transaction"
    assert role_setting(url) == 'ALTER ROLE "a""b" IN DATABASE "x y" SET statement_timeout = \'8s\''


@pytest.mark.parametrize(
    ("settings", "level", "said"),
    [
        ({}, Level.NOTE, "behind Landlock, network: host"),
        ({"egress": "none"}, Level.NOTE, "behind Landlock, network: none"),
        ({"walls_of": {"Bash": "landlock"}}, Level.OK, "behind Landlock, network: host"),
        ({"walls_of": {"Bash": "plain"}}, Level.OK, "without walls, network: host"),
        ({"egress": "a.test"}, Level.PROBLEM, "FORGE_EGRESS=a.test cannot be kept"),
        ({"egress_of": {"queue:low": "none"}}, Level.NOTE, "behind Landlock, network: host; none in low"),
    ],
)
def test_what_stands_around_commands_where_there_are_no_namespaces(
    settings: dict[str, Any], level: Level, said: str
) -> None:
    if given().tier != "landlock":
        pytest.xfail(str(given()))

    def found() -> str:
        [one] = [one for one in check_machine(Settings.load(**settings)) if one.subject == "commands"]
        return f"{one.level} {one.said}"

    assert without(found, "unshare").startswith(f"{level} {said}")


def limits(**settings: Any) -> str:
    [one] = [one for one in check_machine(Settings.load(**settings)) if one.subject == "limits"]
    return f"{one.level} {one.said}"


def test_which_limits_hold_on_this_machine_is_said() -> None:
    most = "4,096" if not given().no_namespaces and limits_processes() else "none"
    assert limits().startswith("ok memory 2,147,483,648 bytes for a body of the process lane, none for commands")
    assert f"processes {most} for a command in namespaces, none elsewhere; not by cgroup: " in limits()
    assert limits().endswith("; no quota for a workspace (docs/walls.md#limits)")
    assert limits(tool_memory=0).startswith("ok memory none for a body")
    assert "processes none" in without(limits, "unshare")


def test_a_cgroup_is_tried_and_what_it_bounds_is_said(tmp_path: Path) -> None:
    assert limits(cgroup=str(tmp_path)).startswith(f"problem cgroup {tmp_path} cannot be divided: ")
    with cgroup() as base:
        if base is None:
            return
        said, each = limits(cgroup=str(base)), "for each body of the process lane, command and MCP server"
        assert f"cgroup {base} ends what they start" in said
        assert (f"2,147,483,648 bytes {each}" in said) == offers(base, "memory")
        assert (f"4,096 {each}" in said) == offers(base, "pids")
        assert list(base.glob("forge-*")) == []


def test_the_project_of_a_workspace_and_its_size_are_said(tmp_path: Path) -> None:
    with project(tmp_path, 42) as folder:
        is_project = folder.is_mount()
        said = limits(workspace=folder / "w")
    assert ("the workspace is project 42, " in said) == is_project
    assert ("no quota for a workspace" in said) != is_project


@contextmanager
def project(folder: Path, number: int) -> Iterator[Path]:
    """A folder `w` that is that project of a file system, which only some can mount; others get one without."""
    place, image = folder / "place", folder / "image"
    (place / "w").mkdir(parents=True)
    image.touch()
    os.truncate(image, 16 << 20)
    steps = [
        ["mke2fs", "-q", "-t", "ext4", "-O", "project,^has_journal", "-d", str(place), str(image)],
        ["debugfs", "-w", "-R", f"set_inode_field /w projid {number}", str(image)],
        ["debugfs", "-w", "-R", "set_inode_field /w flags 0x20080000", str(image)],
        ["mount", "-o", "loop,ro", str(image), str(place)],
    ]
    with suppress(OSError, subprocess.CalledProcessError):
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    try:
        yield place
    finally:
        if place.is_mount():
            subprocess.run(["umount", place], check=True)
