"""Servers on a machine without namespaces: which start all the same, and what the others say."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.mcp.hosted.walls import ServerWalls
from tests.hosting import Host, call, raw

LACK = "unshare: EPERM"


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    yield host
    await host.stop()


def walls(homes: Path, *, may_lack: bool) -> ServerWalls:
    return ServerWalls(default="namespace", homes=homes, lack=LACK, may_lack=may_lack)


async def test_they_start_without_where_they_may_and_each_result_says_so(host: Host, tmp_path: Path) -> None:
    executor = await host.start(raw("plain"), walls=walls(tmp_path, may_lack=True))

    answered = await call(executor, "mcp__raw__echo", text="here")

    assert (answered.output, answered.metadata["walls"]) == ("here", "plain")
    assert [spec.walls for spec in executor.specs() if spec.name == "mcp__raw__echo"] == [None]


async def test_an_entry_does_without_them_in_words(host: Host, tmp_path: Path) -> None:
    executor = await host.start(raw("plain", walls="plain"), walls=walls(tmp_path, may_lack=False))

    assert (await call(executor, "mcp__raw__echo", text="here")).metadata["walls"] == "plain"


@pytest.mark.parametrize(
    ("may_lack", "entry"),
    [(False, {}), (True, {"network": False}), (True, {"network": ("a.test",)}), (True, {"walls": "namespace"})],
)
async def test_others_do_not_start_and_say_what_would_let_them(
    host: Host, tmp_path: Path, may_lack: bool, entry: dict[str, Any]
) -> None:
    await host.start(raw("plain", **entry), walls=walls(tmp_path, may_lack=may_lack))

    state = host.states()["raw"]
    assert (state.status, state.tools) == ("failing", 0)
    assert LACK in state.why
    assert '"walls": "plain" in its entry does without' in state.why


async def test_a_folder_that_has_the_home_in_it_is_not_shown_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    hidden = str(tmp_path / "stack")
    here = ServerWalls(default="namespace", homes=tmp_path / "homes", hidden=[hidden])

    private = [
        here._is_private(str(tmp_path / name)) for name in ("", "user", "stack", "stack/keys", "user/project", "other")
    ]

    assert private == [True, True, True, True, False, False]
