"""Tools that print, log, warn and start others that do, in every way there is."""

import asyncio
import contextvars
import faulthandler
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from forge_tools.tool import tool
from forge_tools.tool.base import ExecutionContext

POOL = ThreadPoolExecutor(2)


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_forked_process() -> None:
    if pid := os.fork():
        os.waitpid(pid, 0)
    else:
        print("from a fork")
        os._exit(0)


WAYS: dict[str, Callable[[], object]] = {
    "print": lambda: print("from print"),
    "stderr": lambda: print("from stderr", file=sys.stderr),
    "bytes": lambda: sys.stdout.buffer.write(b"from \xff bytes\n"),
    "logging": lambda: logging.getLogger("library").error("from %s", "logging"),
    "warning": lambda: warnings.warn("from a warning", UserWarning, stacklevel=1),
    "thread": lambda: in_thread(lambda: print("from a thread")),
    "thread logging": lambda: in_thread(lambda: logging.getLogger("library").warning("from a thread that logs")),
    "pool": lambda: POOL.submit(print, "from a pool").result(),
    "empty context": lambda: in_thread(lambda: contextvars.Context().run(print, "nobody's", end="")),
}
"""In both lanes."""

OUTER_WAYS: dict[str, Callable[[], object]] = {
    "descriptor": lambda: os.write(1, b"from a descriptor\n"),
    "child": lambda: subprocess.run(["echo", "from a child"], check=True),
    "shell": lambda: os.system("echo from a grandchild >&2"),
    "fork": in_forked_process,
}
"""In the process lane."""


def make_noise(context: ExecutionContext, ways: dict[str, Callable[[], object]]) -> str:
    for way in ways.values():
        way()
    context.logger.info("from its logger")
    context.emit("from emit\n")
    assert context.execution_id is not None
    return f"{context.execution_id} {context.attempt} {context.max_attempts}"


@tool
def noise(context: ExecutionContext) -> str:
    """Make a noise in the process lane."""
    return make_noise(context, WAYS | OUTER_WAYS)


@tool
async def noise_async(context: ExecutionContext) -> str:
    """Make a noise in the async lane."""
    await asyncio.to_thread(print, "from to_thread")
    return make_noise(context, WAYS)


@tool(sensitive=["secret"])
def tell(secret: str) -> None:
    """Tell a secret in every way there is."""
    sys.stdout.write(secret[:6])
    print(secret[6:])
    os.write(1, secret[:3].encode())
    os.write(1, secret[3:].encode() + b"\n")
    logging.getLogger("library").warning("with %s", secret)
    subprocess.run(["echo", secret], check=True)
    raise ValueError(f"{secret} is wrong")


@tool
def flood(megabytes: int, how: str = "print") -> int:
    """Put out so much."""
    line = "a line of a flood, of which there are very many, and nobody will ever read them all"
    count = megabytes * 1_000_000 // (len(line) + 1)
    print("the beginning")
    if how == "child":
        subprocess.run(["sh", "-c", f"yes '{line}' | head -n {count}"], check=True)
    for number in range(0 if how == "child" else count):
        if how == "log":
            logging.getLogger("library").info(line)
        else:
            print(line, file=sys.stderr if how == "both" and number % 2 else sys.stdout)
    print("the end")
    return count


@tool
def leave_a_writer(seconds: float) -> None:
    """Leave a process that writes."""
    subprocess.Popen(["sh", "-c", f"for n in $(seq {int(seconds * 10)}); do echo left behind; sleep 0.1; done"])


@tool
async def say(word: str, pause: float = 0.2) -> None:
    """Print a word, and again."""
    for _ in range(5):
        print(word)
        await asyncio.sleep(pause)


@tool
def fail() -> None:
    """Fail below."""
    look_up()


def look_up() -> object:
    time.sleep(0)
    return {}["missing"]


@tool
def crash() -> None:
    """End the process as a fault in C does."""
    os.system("echo from a child; sleep 0.3")
    faulthandler.enable()
    faulthandler._sigsegv()


TOOLS = (crash, noise, noise_async, tell, flood, leave_a_writer, say, fail)
