"""What tools a server had when it was last seen, for a worker that starts while the server is not there."""

import json
import logging
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from mcp.types import Tool
from pydantic import TypeAdapter

from forge_tools.mcp.hosting.configuration import Server

_TOOLS = TypeAdapter(list[Tool])

logger = logging.getLogger(__name__)


class Memory:
    """A file for each server and way to start it in a folder of this host. It holds definitions alone, no secrets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, server: Server, tools: Iterable[Tool]) -> None:
        """Replace what is known of the server; where that fails, there is nothing to know next time."""
        path = self._path(server)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.write_bytes(_TOOLS.dump_json(list(tools), by_alias=True, exclude_unset=True))
            new.replace(path)
        except OSError as error:
            logger.warning(
                "The tools of an MCP server are not kept", extra={"server": server.name, "reason": str(error)}
            )

    def find(self, server: Server) -> list[Tool]:
        """Return the tools it had; none where nothing is known."""
        try:
            return _TOOLS.validate_json(self._path(server).read_bytes())
        except (OSError, ValueError):
            return []

    def _path(self, server: Server) -> Path:
        means = json.dumps([server.name, server.command, server.args, str(server.cwd), server.url])
        return self._folder / f"{sha256(means.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"
