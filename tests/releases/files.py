"""Uses the files of a host with the release that runs it: `files.py FOLDER` leaves a shell and an index, `files.py FOLDER SHELL` uses them."""

import asyncio
import sys
from pathlib import Path

from forge_tools.model import ExecutionContext
from forge_tools.sandbox.reach import Reach
from forge_tools.tool.executor import ToolExecutor
from forge_tools.tool.registry import ScopedRegistry
from forge_tools.tools import BUILTINS

CONTEXT = ExecutionContext(working_dir=".", session_id="session")
COMMAND = "echo ready; exec sleep 100"


async def main(folder: Path, shell: str = "") -> None:
    registry = ScopedRegistry()
    registry.register_many([tool() for tool in BUILTINS])
    reach = Reach(root=folder / "workspace", shells=folder / "shells", cache=folder / "cache", hostname="host")
    tools = ToolExecutor(registry, reach=reach)
    if shell:
        print((await tools.execute("BashOutput", CONTEXT, bash_id=shell, wait_ms=5000)).output)
        print((await tools.execute("KillShell", CONTEXT, shell_id=shell)).output)
    else:
        started = await tools.execute("Bash", CONTEXT, command=COMMAND, run_in_background=True)
        print(started.metadata["bash_id"])
    print((await tools.execute("FindReferences", CONTEXT, symbol="greet")).output)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
