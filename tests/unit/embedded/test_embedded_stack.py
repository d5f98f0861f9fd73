"""The stack as a whole, without its servers."""

from pathlib import Path

import pytest

from forge_tools.config import Settings
from forge_tools.embedded.stack import EmbeddedStack, plan_workers, settings_environment


def test_background_calls_have_processes_of_their_own() -> None:
    plans = plan_workers(("mine:TOOLS",), 3)
    assert [(plan.name, plan.lane, plan.queues, plan.concurrency) for plan in plans] == [
        ("async", "async", ("default", "background"), 200),
        ("process", "process", ("default",), 3),
        ("background", "process", ("background",), 3),
    ]
    assert {plan.tools for plan in plans} == {("mine:TOOLS",)}


def test_who_stops_a_stack_waits_for_seconds_unless_the_settings_say_for_how_long(tmp_path: Path) -> None:
    assert EmbeddedStack(Settings.load(home=tmp_path)).settings.drain == 6
    assert EmbeddedStack(Settings.load(home=tmp_path, drain=120)).settings.drain == 120


def test_a_child_process_reads_exactly_our_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.load(home=tmp_path, drain=2.5, routes={"Bash": "slow"}, broker_url="redis://:pass@host/1")
    for name, value in settings_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == settings


def test_the_status_shows_no_passwords(tmp_path: Path) -> None:
    settings = Settings.load(
        home=tmp_path,
        broker_url="redis://:hush@host:6379/1",
        database_url="postgresql://me:hush@host/db?sslmode=require",
    )
    status = EmbeddedStack(settings).status()
    assert status.broker == "redis://:***@host:6379/1"
    assert status.database == "postgresql://me:***@host/db"
    assert status.processes == ()
