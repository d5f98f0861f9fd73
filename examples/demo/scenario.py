"""What the demo does, like an agent: every step ends with claims that must hold."""

import asyncio
import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.demo.stage import Stage
from forge_tools.cli.text import took
from forge_tools.client import ExecutorClient
from forge_tools.config import Settings
from forge_tools.embedded.stack import settings_environment
from forge_tools.errors import ErrorCode
from forge_tools.model import ExecutionContext, ExecutionStatus, ToolCategory, ToolResult
from forge_tools.project import broker_socket
from forge_tools.sandbox.walls.probe import given
from forge_tools.storage import open_store

CALLS = 50
AGENT = "demo"

_GONE_SECONDS = 5.0
_SECOND_PROCESS_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The calls of the demo against a stack that runs."""

    stage: Stage
    client: ExecutorClient
    settings: Settings
    files: Sequence[str]
    scratch: Path

    async def play(self) -> None:
        """Do all of it, in order."""
        self.stage.section(f"What else it does, on {len(self.files)} files of this folder")
        self._schemas()
        await self._many_at_once()
        await self._in_the_background()
        await self._blocked()
        await self._refused()
        await self._injected()
        await self._told_by_sql()

    def _schemas(self) -> None:
        groups = {c.value: self.client.get_schemas_by_category(c, "anthropic") for c in ToolCategory}
        names = {schema["name"] for group in groups.values() for schema in group}
        there = ", ".join(name for name, group in groups.items() if group)
        self.stage.claim({"Bash", "Grep", "hang", "Read"} <= names, f"schemas by category from SQL: {there}", names)

    async def _many_at_once(self) -> None:
        stage = self.stage
        context = self._context()
        started = time.monotonic()
        results = await asyncio.gather(*(self._look(number, context) for number in range(CALLS)))
        elapsed = time.monotonic() - started
        failed = [result.error for result in results if not result.success]
        stage.claim(
            not failed, f"{CALLS} of {CALLS} calls of Grep and Read succeeded in {took(elapsed * 1000)}", failed[:3]
        )

    async def _look(self, number: int, context: ExecutionContext) -> ToolResult:
        file = self.files[number // 2 % len(self.files)]
        if number % 2:
            return await self.client.execute("Read", context, file_path=file, limit=20)
        return await self.client.execute("Grep", context, pattern="the|import|def", path=file)

    async def _in_the_background(self) -> None:
        command = {"command": "sleep 1; echo counted $(seq 1000 | wc -l) lines"}
        handle = await self.client.submit("Bash", command, self._context(), queue="background")
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-P",
                "-m",
                "forge_tools.cli",
                "show",
                handle.id,
                "--timeout",
                f"{_SECOND_PROCESS_SECONDS:g}",
                "--output",
                "json",
            ),
            env={**os.environ, **settings_environment(self.settings)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        told, complaint = await child.communicate()
        failure = complaint.decode(errors="replace")
        seen = json.loads(told) if child.returncode == 0 else {}
        is_right = seen.get("id") == handle.id and "counted 1000 lines" in seen["output"]
        self.stage.claim(
            is_right, "a call in the background was awaited by a second process, by its id", failure or seen
        )

    async def _blocked(self) -> None:
        stage = self.stage
        pid_file = self.scratch / "hang.pid"
        started = time.monotonic()
        result = await self.client.execute("hang", self._context(timeout=1.0), pid_file=str(pid_file))
        elapsed = time.monotonic() - started
        is_timeout = not result.success and result.error_code == ErrorCode.TIMEOUT
        said = f"an hour of blocking ended after {took(elapsed * 1000)}: {result.error_code}, its process is gone"
        stage.claim(is_timeout and await _is_gone(int(pid_file.read_text())), said, result.to_display())

    async def _refused(self) -> None:
        stage = self.stage
        invalid = await self.client.execute("Grep", self._context(), patern="TODO")
        unknown = await self.client.execute("Grepp", self._context(), pattern="TODO")
        codes = (invalid.error_code, unknown.error_code)
        expected = (ErrorCode.VALIDATION_ERROR, ErrorCode.TOOL_NOT_FOUND)
        stage.claim(codes == expected, "wrong calls fail at once, and say what is wrong", codes)

    async def _injected(self) -> None:
        """What a page told a model to run, by a tool without walls and by the same with them; the last command is an honest one."""
        settings, python = self.settings, shlex.quote(sys.executable)
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect({str(broker_socket(settings.home))!r})"
        database = settings.database.removeprefix("sqlite:///")
        key = next(one for one in settings.keys_folder.iterdir() if one.is_file())
        commands = [f"cat {shlex.quote(str(path))}" for path in (key, database)]
        commands += [f"{python} -c {shlex.quote(connect)}", "ls"]
        bare, walled = [
            (await self.client.execute(tool, self._context(), commands=commands)) for tool in ("obey", "obey_walled")
        ]
        reach = "injected commands reach key, database and broker"
        if walled.metadata.get("walls") == "plain":
            self.stage.claim(bare.output == [0, 0, 0, 0], f"{reach}; there is {given()}", bare.to_display())
            return
        *injected, honest = walled.output
        holds = bare.output == [0, 0, 0, 0] and all(injected) and honest == 0
        self.stage.claim(holds, f"{reach}, but not behind landlock", f"{bare.to_display()} {walled.to_display()}")

    async def _told_by_sql(self) -> None:
        stage = self.stage
        async with await open_store(self.settings.database) as store:
            records = await store.history.list(agent_id=AGENT, limit=1000)
        counted = Counter((record.tool, record.status) for record in records)
        expected = {
            ("Grep", ExecutionStatus.SUCCEEDED): CALLS // 2,
            ("Read", ExecutionStatus.SUCCEEDED): CALLS // 2,
            ("Bash", ExecutionStatus.SUCCEEDED): 1,
            ("hang", ExecutionStatus.TIMED_OUT): 1,
            ("Grep", ExecutionStatus.REJECTED): 1,
            ("Grepp", ExecutionStatus.REJECTED): 1,
            ("obey", ExecutionStatus.SUCCEEDED): 1,
            ("obey_walled", ExecutionStatus.SUCCEEDED): 1,
        }
        total = sum(expected.values())
        stage.claim(
            counted == expected, f"{total} calls, {total} rows, each with how it ended and how long it took", counted
        )

    def _context(self, **fields: float) -> ExecutionContext:
        return ExecutionContext(working_dir=str(self.settings.workspace), agent_id=AGENT, session_id="demo-1", **fields)


async def _is_gone(pid: int) -> bool:
    deadline = time.monotonic() + _GONE_SECONDS
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs. A zombie does not: some containers never reap them."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it has just ended, or there is no /proc
        return not Path("/proc/self/stat").exists()
