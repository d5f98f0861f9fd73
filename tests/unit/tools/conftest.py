"""Tools called as an executor calls them, in a workspace of files that are hard to read."""

import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.model.scope import CallScope
from forge_tools.sandbox.processes.spawner import CommandWalls
from forge_tools.sandbox.reach import REACH, Reach
from forge_tools.sandbox.walls.namespaces import HOST
from forge_tools.sandbox.walls.privileges import open_up
from forge_tools.sandbox.walls.probe import TIERS, given
from forge_tools.tool.base import BaseTool
from tests.unit.tools.shell_session import Book, Session, session

Call = Callable[..., Awaitable[ToolResult]]


@pytest.fixture(scope="session")
def of_each_tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, CommandWalls]]:
    """What workers have, by the tier that is asked for: that one or the next above, else the highest of the machine."""
    cache = tmp_path_factory.mktemp("cache")
    made = [
        CommandWalls(),
        CommandWalls("landlock", HOST, closed=[tempfile.gettempdir()], opened=(), cache=cache),
        CommandWalls("namespace", HOST, closed=(), hidden=(), opened=(), cache=cache),
    ]
    by_tier = {walls.tier: walls for walls in made}
    yield {tier: by_tier[given().of_commands(tier)] for tier in TIERS}
    for walls in made:
        walls.spawner.close()


@pytest.fixture
def commands(request: pytest.FixtureRequest, of_each_tier: dict[str, CommandWalls]) -> CommandWalls:
    """The walls around commands: those of the tier that a test is parametrised with, by default of the highest."""
    return of_each_tier[getattr(request, "param", TIERS[-1])]


@pytest.fixture
def ws(tmp_path: Path, commands: CommandWalls) -> Iterator[Path]:
    """The workspace root, set as the executor sets it."""
    root = tmp_path / "ws"
    root.mkdir()
    (tmp_path / "secret").write_text("hit outside")
    token = REACH.set(Reach(root=root, commands=commands))
    yield root
    REACH.reset(token)


@pytest.fixture
def write(ws: Path) -> Callable[[str, bytes], Path]:
    def write_file(name: str, content: bytes) -> Path:
        path = ws / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write_file


@pytest.fixture
def caller(ws: Path) -> Callable[[BaseTool], Call]:
    """Make a function of a tool; its first argument holds what differs from the usual context, or the id of an execution."""

    def of(tool: BaseTool) -> Call:
        async def call(context: dict[str, Any] | None = None, /, **parameters: Any) -> ToolResult:
            asked = {"working_dir": ".", "execution_id": None} | (context or {})
            scope = CallScope(execution_id=asked.pop("execution_id"))
            return await tool.execute(ExecutionContext(**asked).within(scope), **parameters)

        return call

    return of


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Go on as a user who is not root, and to whom these paths belong."""
    is_root = os.geteuid() == 0

    def become(*paths: Path) -> None:
        if not is_root:
            return
        for path in paths:
            os.chown(path, 65534, 65534)
        for folder in (tmp_path, *tmp_path.parents):
            if not folder.stat().st_mode & 0o001:
                folder.chmod(0o755)
        (tmp_path / "ws").chmod(0o777)
        os.seteuid(65534)

    yield become
    if is_root:
        os.seteuid(0)
        open_up()  # a change of user closed it


@pytest.fixture
def book() -> Book:
    """What other hosts have told of their shells."""
    return Book()


@pytest.fixture
def calls(tmp_path: Path, book: Book, commands: CommandWalls) -> Iterator[Session]:
    """One session on a host for shells that outlive a call."""
    with session(tmp_path, book, commands) as made:
        yield made
