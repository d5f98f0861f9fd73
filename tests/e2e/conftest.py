"""A broker and a stack for the tests of a module."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cli_driver import TOOLS, Cli, working


@pytest.fixture(scope="module")
def broker(valkey_server: Any) -> str:
    valkey_server.flush()
    return str(valkey_server.url)


@pytest.fixture(scope="module")
def cli(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Cli]:
    """A stack whose workers have the tools in the module's `TOOLS`, or the usual ones."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "mytools.py").write_text(getattr(request.module, "TOOLS", TOOLS))
    with working(Cli(folder, FORGE_BROKER_URL=broker)) as cli:
        yield cli
