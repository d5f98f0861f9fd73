"""Printed commands work when they are copied and pasted."""

import sys
import threading
from pathlib import Path

import pytest

from forge_tools.cli.dev import _DevStack
from forge_tools.cli.face import Face
from forge_tools.cli.up import AnnouncedStack, command_line, until_ready
from forge_tools.config import Settings
from forge_tools.embedded.stack import StackStatus
from forge_tools.embedded.supervision import ProcessStatus
from forge_tools.errors import StackError
from forge_tools.model import ToolCategory, ToolSpec
from forge_tools.model.execution import Scope
from forge_tools.model.overview import WorkerRecord
from forge_tools.storage import open_store
from forge_tools.storage.heartbeat import Heartbeat
from tests.migrated import migrated

SCOPE = Scope(instance="one", hostname="here", pid=1, lane="async", queues=(), tool_keys=())


@pytest.fixture
def bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter without any script beside it, and nothing on PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def script_in(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    script = folder / "forge-tools"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o700)
    return script


def test_dev_says_what_is_up_before_it_says_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in ("await_workers", "suggest_own"):
        monkeypatch.setattr(_DevStack, step, lambda _: None)
    stack = _DevStack(Face(), Settings(home=tmp_path), ())
    workers = threading.Thread(target=stack.renewed, args=(0.1,))
    workers.start()
    workers.join(0.1)

    stack.announce(stack.status())
    workers.join(60)
    said = capsys.readouterr().out
    assert said.index("is up") < said.index("Starting the workers") < said.index("Ready.")


def test_dev_suggests_nothing_once_a_file_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = _DevStack(Face(), Settings(home=tmp_path), ())

    def saved_meanwhile(*_: object) -> list[ToolSpec]:
        stack.saved([tmp_path / "mytools.py"])
        return [ToolSpec(name="shout", version="1.0.0", description="", category=ToolCategory.FILE)]

    monkeypatch.setattr("forge_tools.cli.dev.with_store", saved_meanwhile)
    stack.suggest_own()

    assert capsys.readouterr().out.endswith("mytools.py saved ...\n")


def test_a_stack_stops_where_no_more_threads_can_be_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = AnnouncedStack(Face(), Settings(home=tmp_path), (), 1, [])
    stack.announce(a_stack(tmp_path))
    before = threading.stack_size(1 << 45)  # no machine has room for that
    try:
        stack.stop()
    finally:
        threading.stack_size(before)
    assert "Stopped in" in capsys.readouterr().err


def test_without_a_script_the_module_is_run(bare_python: Path) -> None:
    assert command_line(Settings()) == f"{bare_python / 'python'} -m forge_tools.cli"


def test_a_script_beside_python_is_named_relative_to_the_folder(bare_python: Path) -> None:
    script_in(bare_python)
    assert command_line(Settings()) == "bin/forge-tools"


def test_a_script_on_path_needs_no_folder(bare_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_in(bare_python)
    monkeypatch.setenv("PATH", str(bare_python))
    assert command_line(Settings()) == "forge-tools"


def test_another_installation_on_path_is_not_meant(bare_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_in(bare_python)
    monkeypatch.setenv("PATH", str(script_in(bare_python.parent / "other").parent))
    assert command_line(Settings()) == "bin/forge-tools"


def test_an_unusual_folder_is_part_of_the_line(bare_python: Path) -> None:
    script_in(bare_python)
    line = command_line(Settings(home=bare_python.parent / "a b"))
    assert line == f"FORGE_HOME='{bare_python.parent / 'a b'}' bin/forge-tools"


def a_stack(home: Path) -> StackStatus:
    worker = ProcessStatus(
        name="async", pid=1, log=home / "logs" / "async.log", state="restarting", restarts=2, last_exit="exit code 1"
    )
    return StackStatus(home=home, pid=1, broker="", database="", processes=(worker,))


async def test_a_worker_that_does_not_come_up_is_named_with_its_log(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    migrated(settings.database)
    with pytest.raises(StackError, match=r"async \(restarting, its log is .*async.log\)"):
        await until_ready(settings, lambda: a_stack(tmp_path), timeout=0.3, is_given_up=lambda: False)


async def test_nobody_waits_for_a_stack_that_is_given_up(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    migrated(settings.database)
    assert not await until_ready(settings, lambda: a_stack(tmp_path), is_given_up=lambda: True)


async def test_a_worker_is_ready_once_it_claims_calls_and_not_when_it_is_only_known(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    migrated(settings.database)
    async with await open_store(settings.database) as store:
        await store.workers.register(
            WorkerRecord(id="one", hostname="here", pid=1, lane="async", queues=(), concurrency=1, version="1")
        )
        with pytest.raises(StackError, match="Not ready"):
            await until_ready(settings, lambda: a_stack(tmp_path), timeout=0.2, is_given_up=lambda: False)
        await store.workers.beat(Heartbeat(SCOPE))
    assert await until_ready(settings, lambda: a_stack(tmp_path), is_given_up=lambda: False)
