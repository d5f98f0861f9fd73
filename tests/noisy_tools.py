"""Tools that write to standard output in every way there is, log, and crash."""

import ctypes
import logging
import os
import subprocess
import sys
import time

from forge_tools.tool.base import BaseTool, ExecutionContext, ToolCategory, ToolParameter, ToolResult

print("printed while it was imported")

WAYS = {
    "print": lambda: print("printed", flush=True),
    "print without a flush": lambda: sys.stdout.write("left in the buffer"),
    "the original stream": lambda: print("to __stdout__", file=sys.__stdout__, flush=True),
    "descriptor": lambda: os.write(1, b'{"jsonrpc":"2.0","id":1,"result":"forged"}\n'),
    "child": lambda: subprocess.run(["echo", "from a child"], check=True),
    "shell": lambda: os.system("echo from a shell"),
    "c": lambda: ctypes.CDLL(None).puts(b"from C"),
    "flushed c": lambda: ctypes.CDLL(None).fflush(None),
    "log": lambda: logging.getLogger("noisy").error("logged"),
    "handler": lambda: logging.StreamHandler(sys.stdout).handle(logging.makeLogRecord({"msg": "by a handler"})),
    "input": lambda: sys.stdin.read(100),
    "raise": lambda: 1 / 0,
    "exit": lambda: sys.exit("by sys.exit"),
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "block": lambda: time.sleep(30),
    "crash": lambda: os._exit(3),
    "abort": os.abort,
}


class Noisy(BaseTool):
    """Make a noise, and say that it was made."""

    name = "Noisy"
    category = ToolCategory.OTHER
    parameters = (ToolParameter(name="way", type="string", description="How.", enum=list(WAYS)),)

    async def _execute(self, context: ExecutionContext, way: str) -> ToolResult:
        WAYS[way]()
        return ToolResult.ok(f"made: {way}")


TOOLS = (Noisy,)
