"""The live view of `forge-tools top`: how it ends when something fails."""

from pathlib import Path

import pytest

from forge_tools.cli.face import Face
from forge_tools.cli.screen import Frame
from forge_tools.cli.top import Watch
from forge_tools.config import Settings
from forge_tools.storage import Store
from tests.migrated import migrated
from tests.unit.cli.conftest import Command


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    url = f"sqlite:///{tmp_path / 'forge.db'}"
    migrated(url)
    return Settings.load(home=tmp_path, database_url=url)


async def test_a_mistake_of_ours_is_not_taken_for_its_end(settings: Settings) -> None:
    async def broken(store: Store) -> Frame:
        raise TypeError("no frame for this")

    with pytest.raises(TypeError, match="no frame"):
        await Watch(Face(), settings, broken).run(1.0)


def test_rejections_have_a_column_of_their_own_if_there_are_any(command: Command) -> None:
    _, before, _ = command("stats")
    command("run", "nothing", "--background")
    _, after, _ = command("stats")

    assert "rejected" not in before
    _, titles, _, row, *_ = after.splitlines()
    shown = dict(zip(titles.split(), row.split(), strict=False))
    assert (shown["failed"], shown["rejected"]) == ("0", "1")
