"""Tools that integration tests run on workers: well-behaved ones, and each way to misbehave."""

import asyncio
import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from tests.careless_tools import CARELESS
from tests.flaky_tools import FLAKY
from tests.impostor import Impostor, Scribbler
from tests.marks import leave_mark
from tests.rogue_tools import ROGUES
from tests.waiting import reached

MESSAGE = ToolParameter(name="message", type="string", description="What to say.")
SECONDS = ToolParameter(name="seconds", type="number", description="How long.", required=False, default=0.2)
MARK = ToolParameter(name="mark", type="string", description="File to append a line to at each body start.")


class Echo(BaseTool):
    """Return the message."""

    name = "Echo"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    lane = "async"
    parameters = (MESSAGE,)

    async def _execute(self, context: ExecutionContext, message: str) -> ToolResult:
        return ToolResult.ok(message, agent=context.agent_id)


class EchoInProcess(Echo):
    """Return the message from a process of its own."""

    name = "EchoInProcess"
    lane = "process"


class Sleep(BaseTool):
    """Await some seconds."""

    name = "Sleep"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (SECONDS, MARK.model_copy(update={"required": False}))

    async def _execute(self, context: ExecutionContext, seconds: float, mark: str = "") -> ToolResult:
        if mark:
            leave_mark(mark, os.getpid())
        await asyncio.sleep(seconds)
        return ToolResult.ok(f"slept {seconds:g}s")


class Block(BaseTool):
    """Block the interpreter's thread for some seconds, as careless tools do."""

    name = "Block"
    category = ToolCategory.EXECUTION
    parameters = (SECONDS, MARK)

    async def _execute(self, context: ExecutionContext, seconds: float, mark: str) -> ToolResult:
        leave_mark(mark, os.getpid())
        time.sleep(seconds)
        return ToolResult.ok(os.getpid())


class BlockIdempotent(Block):
    """Block, harmlessly."""

    name = "BlockIdempotent"
    capabilities = Capabilities(idempotent=True)


class KillItself(BaseTool):
    """End the process it runs in."""

    name = "KillItself"
    category = ToolCategory.EXECUTION
    parameters = (MARK,)

    async def _execute(self, context: ExecutionContext, mark: str) -> ToolResult:
        leave_mark(mark, os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
        return ToolResult.ok("unreachable")


class KillItselfIdempotent(KillItself):
    """End the process it runs in; running it again is said to be harmless."""

    name = "KillItselfIdempotent"
    capabilities = Capabilities(idempotent=True)


class SpawnAndBlock(BaseTool):
    """Start a child process, note its pid, and block."""

    name = "SpawnAndBlock"
    category = ToolCategory.EXECUTION
    parameters = (MARK,)

    async def _execute(self, context: ExecutionContext, mark: str) -> ToolResult:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
        Path(mark).write_text(f"{os.getpid()} {child.pid}\n")
        time.sleep(120)
        return ToolResult.ok("unreachable")


class ReturnAnything(BaseTool):
    """Return values that are no ToolResult, or that no database likes."""

    name = "ReturnAnything"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (ToolParameter(name="what", type="string", description="Which value."),)

    async def _execute(self, context: ExecutionContext, what: str) -> ToolResult:
        values: dict[str, Any] = {
            "number": 42,
            "nothing": None,
            "nul": "a\x00b",
            "surrogate": "\ud800",
            "object": object(),
            "bytes": b"\xff",
            "nan": float("nan"),
        }
        return values[what]


class Environment(BaseTool):
    """Return the environment a tool in a process of its own can see."""

    name = "Environment"
    category = ToolCategory.OTHER
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        return ToolResult.ok(dict(os.environ))


class Login(BaseTool):
    """Take a secret."""

    name = "Login"
    category = ToolCategory.OTHER
    lane = "async"
    parameters = (
        ToolParameter(name="user", type="string", description="Who."),
        ToolParameter(name="password", type="string", description="The secret.", sensitive=True),
    )

    async def _execute(self, context: ExecutionContext, user: str, password: str) -> ToolResult:
        return ToolResult.ok(f"{user} has a password of {len(password)} characters")


class HoldInterpreter(BaseTool):
    """Sit in a C call that lets no other thread of the process run."""

    name = "HoldInterpreter"
    category = ToolCategory.EXECUTION
    lane = "async"
    parameters = (SECONDS, MARK)

    async def _execute(self, context: ExecutionContext, seconds: float, mark: str) -> ToolResult:
        leave_mark(mark, os.getpid())
        ctypes.PyDLL(None).sleep(int(seconds))
        return ToolResult.ok("let go")


class Deafen(BaseTool):
    """Make the worker's own Celery stop consuming, as broken connections have done, while all else goes on."""

    name = "Deafen"
    category = ToolCategory.EXECUTION
    lane = "async"
    parameters = ()

    async def _execute(self, context: ExecutionContext) -> ToolResult:
        from celery.worker.consumer import Consumer

        gc.unfreeze()  # what a worker has frozen at its start is not listed
        # This call may have been pulled from SQL before Celery came to its own consumer.
        consumers = await reached(lambda: [one for one in gc.get_objects() if isinstance(one, Consumer)])
        for consumer in consumers:
            # it would begin to consume afterwards
            await reached(lambda consumer=consumer: consumer.blueprint.started >= len(consumer.steps))
            consumer.hub.call_soon(consumer.task_consumer.cancel)
        return ToolResult.ok(len(consumers))


class LetGo(BaseTool):
    """Close every descriptor of the worker, as careless daemons do."""

    name = "LetGo"
    category = ToolCategory.EXECUTION
    lane = "async"
    parameters = (MARK,)

    async def _execute(self, context: ExecutionContext, mark: str) -> ToolResult:
        leave_mark(mark, os.getpid())
        os.closerange(3, 256)
        return ToolResult.ok("let go")


TOOLS = (
    Echo,
    EchoInProcess,
    Sleep,
    Block,
    BlockIdempotent,
    KillItself,
    KillItselfIdempotent,
    SpawnAndBlock,
    ReturnAnything,
    Environment,
    Login,
    HoldInterpreter,
    Deafen,
    LetGo,
    Impostor,
    Scribbler,
    *ROGUES,
    *FLAKY,
    *CARELESS,
)
