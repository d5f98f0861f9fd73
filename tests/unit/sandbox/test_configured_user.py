"""Whom tools run as: root alone can hand on to somebody else, and says at the start what is closed to him."""

import grp
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.errors import ConfigurationError
from forge_tools.sandbox import configured as module
from forge_tools.sandbox.configured import User
from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.walls.privileges import drop_capabilities, open_up
from tests.fleet import ROOT
from tests.session_folder import is_open
from tests.walled import NOBODY, in_child

IS_ROOT = os.geteuid() == 0
NAME = pwd.getpwuid(NOBODY).pw_name


def refusal_of(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        User.parse(text)
    return str(caught.value)


@pytest.mark.parametrize("text", ["no-such-user", "no-such-user:root", f"{NAME}:no-such-group"])
def test_a_user_or_group_that_is_not_there_is_named(text: str) -> None:
    assert refusal_of(text).startswith("FORGE_RUN_AS: this host has no ")
    assert "'no-such-" in refusal_of(text)


@pytest.mark.parametrize("text", ["root", f"root:{grp.getgrgid(NOBODY).gr_name}", f"{NAME}:root"])
def test_root_and_its_group_are_refused(text: str) -> None:
    assert "is root, who gives tools all of this host" in refusal_of(text)


def test_who_is_not_root_becomes_nobody_else() -> None:
    said = in_child(lambda: refusal_of(NAME), uid=NOBODY)
    assert f"only if root starts it. Start this one as {NAME} without it." in said


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> User:
    """Somebody who can run this Python, wherever it is; not as root the refusal is all that there is to see."""
    if not IS_ROOT:
        assert "only if root starts it" in refusal_of(NAME)
        pytest.xfail("only root becomes another user")
    monkeypatch.setattr(module.sys, "executable", "/bin/sh")
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # that of the tests is closed to him
    user = User.parse(NAME)
    if not is_open(ROOT):
        with pytest.raises(ConfigurationError, match="cannot reach"):
            user.require([])
        pytest.xfail("he has to reach this code")
    return user


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that others reach: those of pytest are closed."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_a_process_that_becomes_him_has_his_ids_no_other_group_and_no_capability(user: User) -> None:
    def become() -> tuple[object, ...]:
        user.become()
        open_up()
        status = Path("/proc/self/status").read_text().split("\n")
        capabilities = {line.split()[1] for line in status if line.startswith(("CapPrm", "CapEff", "CapAmb"))}
        return os.getresuid(), os.getresgid(), os.getgroups(), capabilities

    ids = (user.uid,) * 3, (user.gid,) * 3
    assert in_child(become) == str((*ids, [], {"0" * 16}))
    assert os.getuid() == 0


def test_a_folder_that_he_cannot_write_to_is_refused_with_the_line_that_opens_it(user: User, folder: Path) -> None:
    (folder / "its file").touch()
    user.require([Root(folder, is_read_only=True)])
    with pytest.raises(ConfigurationError, match="cannot use the workspace") as caught:
        user.require([Root(folder)])
    _, _, line = str(caught.value).rstrip(".").partition("Open it: ")
    assert line.startswith(f"chgrp -R {grp.getgrgid(user.gid).gr_name} {folder} && chmod -R g+rwX {folder}")
    subprocess.run(["/bin/sh", "-c", line], check=True)
    user.require([Root(folder)])
    (folder / "later").mkdir()
    assert {one.stat().st_gid for one in folder.iterdir()} == {user.gid}


def test_a_folder_above_that_keeps_him_out_is_named(user: User, folder: Path) -> None:
    (folder / "closed" / "inside").mkdir(parents=True)
    (folder / "closed").chmod(0o700)
    (folder / "link").symlink_to(folder / "closed" / "inside")
    for path in (folder / "closed" / "inside", folder / "link"):
        with pytest.raises(ConfigurationError) as caught:
            user.require([Root(path)])
        assert f"cannot reach {path}, because {folder}/closed is closed" in str(caught.value)
        assert str(caught.value).endswith(f"or: chmod o+x {folder}/closed.")


def test_a_python_that_he_cannot_run_is_named(user: User, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy("/bin/sh", folder / "python")
    (folder / "python").chmod(0o700)
    monkeypatch.setattr(module.sys, "executable", str(folder / "python"))
    with pytest.raises(ConfigurationError, match=r"cannot use /tmp/\w+/python, which tools need"):
        user.require([])


def test_a_root_without_the_capabilities_that_it_takes_says_so(user: User) -> None:
    def refusals() -> tuple[str, str]:
        drop_capabilities()
        with pytest.raises(ConfigurationError) as caught:
            user.require([])
        return refusal_of(NAME), str(caught.value)

    said = in_child(refusals)
    assert "root lacks capabilities here: CHOWN, KILL, SETGID, SETUID, SYS_PTRACE." in said
    assert f"this worker cannot become {NAME}: Operation not permitted." in said
