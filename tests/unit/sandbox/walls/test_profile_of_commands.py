"""What commands are shown, as lists: the system and toolchains of all, the workspace of each, and what covers the rest."""

from pathlib import Path

import pytest

from forge_tools.sandbox.walls.profile import behind_landlock, of_machine, of_workspace


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("home/.pyenv", "home/.ssh", "state/keys", "opt/bin"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "home"


def test_the_home_is_an_empty_folder_with_toolchains_and_no_credentials_in_it(home: Path) -> None:
    shown = of_machine({"HOME": str(home), "PATH": f"{home.parent}/opt/bin:.:/usr/bin"}, [], [])

    assert shown.index(f"own:{home}") < shown.index(f"ro:{home}/.pyenv")
    assert {f"ro:{home.parent}/opt/bin", "ro:/usr", "ro:/etc"} < set(shown)
    assert not [entry for entry in shown if ".ssh" in entry or entry.endswith((":/", ":.", ":/proc", ":/usr/bin"))]


@pytest.mark.parametrize("above", ["", "state"])
def test_a_folder_on_the_path_that_holds_the_home_or_what_is_closed_is_not_shown(home: Path, above: str) -> None:
    folder = home.parent / above
    shown = of_machine({"HOME": str(home), "PATH": str(folder)}, [f"{home.parent}/state/keys"], ["/data:rw", "/x:ro"])

    assert f"ro:{folder}" not in shown
    assert {f"hide:{home.parent}/state/keys", "rw:/data", "ro:/x"} < set(shown)
    assert shown.index("rw:/data") > shown.index(f"hide:{home.parent}/state/keys")


def test_behind_landlock_nothing_is_opened_that_holds_the_home_or_what_is_closed(home: Path) -> None:
    environment = {"HOME": str(home), "PATH": f"{home.parent}:{home}/bin:{home.parent}/opt/bin:/usr/bin"}
    closed, opened = [f"{home.parent}/state/keys", "/etc/ssl"], [f"{home}/.ssh:ro", f"{home}/../opt:rw"]

    shown = behind_landlock(environment, closed, opened)

    assert {f"ro:{home}/.pyenv", f"ro:{home}/.ssh", f"ro:{home.parent}/opt/bin", f"rw:{home.parent}/opt"} < set(shown)
    assert not {f"ro:{home.parent}", f"ro:{home}", "ro:/etc", "ro:/etc/ssl"} & set(shown)
    assert {"ro:/usr", "ro:/etc/passwd"} < set(shown)
    assert {"ln:.pyenv", "ln:.ssh", "ln:bin", f"home:{home}"} < set(shown)
    assert not [word for word in shown if ".." in word]


def test_links_on_the_way_are_copied(home: Path) -> None:
    (home.parent / "link").symlink_to("home")
    (home.parent / "again").symlink_to(home.parent / "link")

    shown = of_workspace([(f"{home.parent}/again/ws", False)], [], "/cache")

    assert shown == [f"ln:{home.parent}/again", f"ln:{home.parent}/link", f"rw:{home}/ws", "rw:/cache"]


def test_what_is_hidden_in_a_workspace_cannot_be_moved_with_a_folder_around_it() -> None:
    shown = of_workspace([("/ws", False), ("/ws/docs", True)], ["/ws/a/b/home", "/ws/docs/c/key", "/elsewhere"], "")

    assert shown == ["rw:/ws", "ro:/ws/docs", "rw:/ws/a", "rw:/ws/a/b", "hide:/ws/a/b/home", "hide:/ws/docs/c/key"]


def test_a_workspace_of_the_whole_machine_shows_what_lies_in_its_root() -> None:
    shown = of_workspace([("/", False)], [], "")

    assert {"rw:/usr", "rw:/etc", "rw:/tmp"} <= set(shown)
    assert not {"rw:/", "rw:/proc", "rw:/dev", "rw:/bin"} & set(shown)
