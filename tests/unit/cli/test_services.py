"""Commands wait for a stack that starts, and for no other."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forge_tools.cli.face import Face
from forge_tools.cli.services import await_stack, require_stack
from forge_tools.config import Settings
from forge_tools.embedded.home import HomeLock, open_home
from forge_tools.errors import SchemaVersionError, StackError


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=open_home(tmp_path / "home"))


def taken(settings: Settings) -> HomeLock:
    return HomeLock(settings.home).acquire()


@contextmanager
def soon(action: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(0.3, action)
    timer.start()
    yield
    timer.join()


def test_a_stack_that_starts_is_waited_for(settings: Settings) -> None:
    lock = taken(settings)
    with soon(lock.declare_ready):
        assert await_stack(Face(), settings)
    lock.release()


def test_a_stack_that_ends_while_it_starts_is_not_there(settings: Settings) -> None:
    lock = taken(settings)
    with soon(lock.release):
        assert not await_stack(Face(), settings)


def test_a_stack_that_started_long_ago_is_used_as_it_is(settings: Settings) -> None:
    lock = taken(settings)
    held = settings.home / "lock"
    held.write_text(json.dumps(json.loads(held.read_text()) | {"since": "2026-01-01T00:00:00+00:00"}))

    assert await_stack(Face(), settings)
    lock.release()


def test_a_stack_that_was_started_just_before_is_found(settings: Settings) -> None:
    taking: list[HomeLock] = []

    def start() -> None:
        taking.append(taken(settings))
        taking[0].declare_ready()

    with soon(start):
        require_stack(Face(), settings, is_left=False)
    taking[0].release()


def test_without_a_stack_a_call_is_refused_with_the_way_out(settings: Settings) -> None:
    with pytest.raises(StackError, match="forge-tools up"):
        require_stack(Face(), settings, is_left=False)


def test_where_no_stack_ever_ran_a_call_is_not_said_to_wait_for_the_next(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SchemaVersionError, match=r"There is no database at .+ yet\. Run `forge-tools up`"):
        require_stack(Face(), settings, is_left=True)
    assert capsys.readouterr().err == ""

    (settings.home / "forge.db").touch()
    require_stack(Face(), settings, is_left=True)
    assert "the call waits for the next one" in capsys.readouterr().err


def test_servers_of_ones_own_need_no_stack(settings: Settings) -> None:
    require_stack(Face(), settings.model_copy(update={"database_url": "sqlite:////elsewhere.db"}), is_left=False)
