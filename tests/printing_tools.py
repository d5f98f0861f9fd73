"""Tools that print, log, warn and start others that do, in every way there is."""

import asyncio
import contextvars
import faulthandler
import logging
import os
import signal
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


class Talkative:
    """Logs whenever it is put into words."""

    def __str__(self) -> str:
        logging.getLogger("library").warning("from within")
        return "without"


WAYS: dict[str, Callable[[], object]] = {
    "print": lambda: print("from print"),
    "stderr": lambda: print("from stderr", file=sys.stderr),
    "bytes": lambda: sys.stdout.buffer.write(b"from \xff bytes\n"),
    "logging": lambda: logging.getLogger("library").error("from %s", "logging"),
    "warning": lambda: warnings.warn("from a warning", UserWarning, stacklevel=1),
    "thread": lambda: in_thread(lambda: print("from a thread")),
    "thread logging": lambda: in_thread(lambda: logging.getLogger("library").warning("from a thread that logs")),
    "pool": lambda: POOL.submit(print, "from a pool").result(),
    "odd characters": lambda: print("from \x00 \udcff \x1b[2J"),
    "logging that logs": lambda: logging.getLogger("library").warning("from %s", Talkative()),
    "empty context": lambda: in_thread(lambda: contextvars.Context().run(print, "nobody's", end="")),
}
"""In both lanes."""

OUTER_WAYS: dict[str, Callable[[], object]] = {
    "descriptor": lambda: os.write(1, b"from a descriptor\n"),
    "child": lambda: subprocess.run(["echo", "from a child"], check=True),
    "shell": lambda: os.system("sh -c 'sleep 0; echo from a grandchild >&2'; true"),
    "latin-1": lambda: subprocess.run(["printf", r"from an \351migr\351\n"], check=True),
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
    found = ValueError(f"{secret} is wrong")
    found.add_note(f"noted: {secret}")
    raise found from KeyError(secret)


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
def leave_a_thread(seconds: float) -> None:
    """Leave a thread that prints and logs."""
    until = time.monotonic() + seconds

    def chatter() -> None:
        while time.monotonic() < until:
            print("left behind")
            logging.getLogger("library").warning("left behind")
            time.sleep(0.01)

    threading.Thread(target=chatter, daemon=True).start()


@tool
def log_for_ever() -> None:
    """Log in a loop that ends by its timeout alone."""
    for _ in range(1_000_000_000):
        logging.getLogger("library").warning("again")


@tool
async def log_for_ever_async() -> None:
    """Log in such a loop that lets others run."""
    for _ in range(1_000_000_000):
        logging.getLogger("library").warning("again")
        await asyncio.sleep(0)


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
def recurse(depth: int) -> None:
    """Fail at that depth."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 500)
    try:
        go_down(depth)
    finally:
        sys.setrecursionlimit(before)


def go_down(depth: int) -> None:
    if depth == 0:
        raise ValueError("the bottom")
    go_down(depth - 1)


@tool
def crash() -> None:
    """End the process as a fault in C does."""
    os.system("echo from a child; sleep 0.3")
    faulthandler.enable()
    signal.raise_signal(signal.SIGSEGV)


TOOLS = (
    crash,
    fail,
    flood,
    leave_a_thread,
    leave_a_writer,
    log_for_ever,
    log_for_ever_async,
    noise,
    noise_async,
    recurse,
    say,
    tell,
)
