"""Servers on a machine without namespaces: which start all the same, and what the others say."""

import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from forge_tools.mcp.hosted import configuration
from forge_tools.mcp.hosted.configuration import Server, ServerWalls
from forge_tools.sandbox.paths.confinement import true_path
from forge_tools.sandbox.processes.spawner import Spawner
from forge_tools.sandbox.walls.probe import Given, given
from tests.fleet import ROOT
from tests.hosting import Host, call, raw

SCRIPT = str(ROOT / "tests/mcp_servers/walled.py")

LACK = "unshare: EPERM"
LANDLOCKED = Given("landlock", 7, "", LACK)
WHOLE = Given("landlock", 7)
NAMESPACES = Given("plain", 0, "landlock: ENOSYS")
BARE = Given("plain", 0, "landlock: ENOSYS", LACK)


def walls(homes: Path, least: str = "plain", *, machine: Given = BARE) -> ServerWalls:
    return ServerWalls(default="namespace", homes=homes, machine=machine, least=least)


async def test_they_start_without_where_they_may_and_each_result_says_so(host: Host, tmp_path: Path) -> None:
    executor = await host.start(raw("plain"), walls=walls(tmp_path))

    answered = await call(executor, "mcp__raw__echo", text="here")

    assert (answered.output, answered.metadata["walls"]) == ("here", "plain")
    assert [spec.walls for spec in executor.specs() if spec.name == "mcp__raw__echo"] == [None]


async def test_an_entry_does_without_them_in_words(host: Host, tmp_path: Path) -> None:
    executor = await host.start(raw("plain", walls="plain"), walls=walls(tmp_path, "namespace"))

    assert (await call(executor, "mcp__raw__echo", text="here")).metadata["walls"] == "plain"


@pytest.mark.parametrize(
    ("machine", "least", "entry", "tier"),
    [
        (LANDLOCKED, "plain", {}, "landlock"),
        (LANDLOCKED, "landlock", {"network": False}, "landlock"),
        (LANDLOCKED, "namespace", {}, "namespace"),
        (LANDLOCKED, "plain", {"network": ("a.test",)}, "namespace"),
        (LANDLOCKED, "plain", {"walls": "namespace"}, "namespace"),
        (LANDLOCKED, "plain", {"walls": "plain"}, "plain"),
        (WHOLE, "namespace", {}, "namespace"),
        (WHOLE, "namespace", {"walls": "landlock", "network": False}, "landlock"),
        (LANDLOCKED, "namespace", {"walls": "landlock"}, "landlock"),
        (NAMESPACES, "namespace", {"walls": "landlock"}, "namespace"),
        (BARE, "plain", {}, "plain"),
        (BARE, "plain", {"network": False}, "namespace"),
    ],
)
def test_each_is_to_have_the_highest_that_keeps_it_to_its_network(
    tmp_path: Path, machine: Given, least: str, entry: dict[str, Any], tier: str
) -> None:
    assert walls(tmp_path, least, machine=machine).tier(raw("plain", **entry)) == tier


@pytest.mark.parametrize(("machine", "asked"), [(LANDLOCKED, {}), (WHOLE, {"walls": "landlock"})])
async def test_behind_landlock_it_keeps_its_home_and_sees_what_is_mounted_but_not_what_is_hidden_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host, machine: Given, asked: dict[str, Any]
) -> None:
    if given().tier != "landlock":
        pytest.xfail(str(given()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in ("here", "mounted", "other", "tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "here/mcp.json").write_text("secret")
    entry = {"command": sys.executable, "args": ("-P", SCRIPT), "cwd": tmp_path / "here", "network": False, **asked}
    server = Server(name="s", mounts=(f"{tmp_path}/mounted:rw", f"{ROOT}:ro"), **entry)
    hidden = [str(tmp_path / "here/mcp.json")]
    behind = replace(
        walls(tmp_path / "homes", machine=machine), hidden=hidden, closed=(*hidden, str(tmp_path / "other"))
    )
    executor = await host.start(server, walls=behind)

    async def said(tool: str, **arguments: str) -> str:
        result = await call(executor, f"mcp__s__{tool}", **arguments)
        assert result.metadata["walls"] == "landlock"
        return str(result.output)

    read = [
        await said("read", path=f"{tmp_path}/{name}")
        for name in ("here/file", "mounted/file", "other/file", "here/mcp.json")
    ]
    wrote = [
        await said("write", path=path, text="x")
        for path in (f"{tmp_path}/mounted/new", f"{tmp_path}/here/new", "~/kept")
    ]
    assert read == ["here", "mounted", "PermissionError", "PermissionError"]
    assert wrote == ["written", "PermissionError", "written"]
    assert list((tmp_path / "homes").glob("*/kept"))
    assert "Permission denied" in await said("fetch", url="http://127.0.0.1:9/")


@pytest.mark.parametrize(
    ("least", "entry"),
    [
        ("namespace", {}),
        ("landlock", {}),
        ("plain", {"network": False}),
        ("plain", {"network": ("a.test",)}),
        ("plain", {"walls": "namespace"}),
        ("plain", {"walls": "landlock"}),
    ],
)
async def test_others_do_not_start_and_say_what_would_let_them(
    host: Host, tmp_path: Path, least: str, entry: dict[str, Any]
) -> None:
    await host.start(raw("plain", **entry), walls=walls(tmp_path, least))

    state = host.states()["raw"]
    assert (state.status, state.tools) == ("failing", 0)
    assert (BARE.why if entry.get("walls") == "landlock" else LACK) in state.why
    assert '"walls": "plain" in its entry does without' in state.why


class Noting(Spawner):
    """Notes in which folder each command would start, and what it would be shown; starts nothing."""

    started: ClassVar[list[tuple[str, Sequence[str]]]] = []

    def start(self, *_: object, folder: int, shown: Sequence[str] = (), **__: object) -> socket.socket:
        self.started.append((true_path(folder), shown))
        return socket.socket()


@pytest.mark.parametrize(
    ("name", "is_private"),
    [("", True), ("user", True), ("stack", True), ("stack/keys", True), ("user/project", False), ("other", False)],
)
def test_a_folder_that_has_the_home_in_it_is_not_shown_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_private: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setattr(configuration, "Spawner", Noting)
    monkeypatch.setattr(Noting, "started", [])
    (tmp_path / name).mkdir(parents=True, exist_ok=True)
    here = ServerWalls(default="namespace", homes=tmp_path / "homes", hidden=[str(tmp_path / "stack")])

    here.start(Server(name="s", command="true", cwd=tmp_path / name), streams=(0, 1, 2), grace=1).close()

    [(folder, shown)] = Noting.started
    assert Path(folder).is_relative_to(tmp_path / "homes") == is_private
    assert (folder == str(tmp_path / name)) == (f"ro:{folder}" in shown) == (not is_private)
