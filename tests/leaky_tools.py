"""Tools that mishandle a secret in every way careless code does: print, log, raise and return it, or die with it."""

import asyncio
import base64
import logging
import os
import signal
import sys
import threading
import time
from typing import Any
from urllib.parse import quote

from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from tests.marks import leave_mark

SECRET = ToolParameter(name="secret", type="any", description="What nobody may see.", sensitive=True, aliases=("key",))
NOTE = ToolParameter(name="note", type="string", description="What everybody may see.", required=False, default="")
HOW = ToolParameter(name="how", type="string", description="How to leak it.", required=False, default="returned")
MARK = ToolParameter(name="mark", type="string", description="A file for body starts.", required=False, default="")


class Leak(BaseTool):
    """Leak a secret in a process of its own."""

    name = "Leak"
    category = ToolCategory.OTHER
    capabilities = Capabilities(idempotent=True)
    parameters = (SECRET, NOTE, HOW, MARK)

    async def _execute(self, context: ExecutionContext, secret: Any, note: str, how: str, mark: str) -> ToolResult:
        print(f"called with {context.metadata}")
        text = secret if isinstance(secret, str) else repr(secret)
        print(f"printed {text}")
        sys.stderr.write(f"printed {text}\n")
        sys.stderr.writelines([f"printed {text}\n"])
        print(f"printed {text[:12]}", end="")
        print(text[12:])
        thread = threading.Thread(target=print, args=(f"printed elsewhere {text}",))
        thread.start()
        thread.join()
        logging.getLogger("some.library").warning("logged %s", text, extra={"data_of_it": secret})
        self.logger.error("logged by the tool: %s", text)
        context.emit(f"told {text}\n")
        context.emit(f"told {text[:12]}")
        ExecutionContext(working_dir=".").emit(f"{text[12:]}\n")
        context.progress(1, 2, f"on {text}")
        starts = leave_mark(mark, time.time()) if mark else 1
        return await getattr(self, f"_{how}")(text, starts)

    async def _dry_run(self, context: ExecutionContext, **parameters: Any) -> ToolResult:
        return ToolResult.ok(f"would leak {parameters['secret']!r}", parameters=parameters)

    async def _returned(self, text: str, _: int) -> ToolResult:
        encoded = {"base64": base64.b64encode(text.encode()).decode(), "hex": text.encode().hex(), "url": quote(text)}
        basic = base64.b64encode(f"somebody:{text}".encode()).decode()
        return ToolResult.ok({"text": text, text: [text, encoded], "basic": basic}, seen=text, deep=[{"er": text}])

    async def _long(self, text: str, _: int) -> ToolResult:
        return ToolResult.ok("\n".join(f"line {number} has {text}" for number in range(40_000)))

    async def _raised(self, text: str, _: int) -> ToolResult:
        try:
            raise KeyError(text)
        except KeyError as error:
            raise RuntimeError(f"cannot log in with {text}") from error

    async def _failed(self, text: str, _: int) -> ToolResult:
        return ToolResult.fail(
            f"refused {text}", error_details={"seen": [text]}, where=f"http://host/?key={quote(text)}"
        )

    async def _retried(self, text: str, starts: int) -> ToolResult:
        return ToolResult.fail(f"not yet, {text}", retryable=True) if starts < 2 else ToolResult.ok(text)

    async def _killed(self, text: str, starts: int) -> ToolResult:
        if starts < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return ToolResult.ok(text)

    async def _slow(self, text: str, starts: int) -> ToolResult:
        if starts < 2:
            await asyncio.sleep(60)
        return ToolResult.ok(text)


class LeakOnLoop(Leak):
    """Leak a secret on the loop of the async lane."""

    name = "LeakOnLoop"
    lane = "async"


TOOLS = [Leak(), LeakOnLoop()]
