"""What a body may try on its host: the attacks of the arena, and what must go on behind walls. Each raises what the kernel says."""

import asyncio
import errno
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from forge_tools.sandbox.walls import seccomp
from forge_tools.sandbox.walls.privileges import gain_nothing
from forge_tools.sandbox.walls.probe import given
from forge_tools.tool import tool

if os.environ.get("FORGE_WITHOUT_NAMESPACES"):
    gain_nothing()
    seccomp.refuse(["unshare"])
    given.cache_clear()

PTRACE_SEIZE, NEW_USER = 0x4206, 0x10000000
Targets = dict[str, Any]


def connect(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> None:
    with socket.socket(family, kind) as line:
        line.connect(address)


def write(path: Path) -> None:
    path.write_text("written")
    path.unlink()


def cat(path: str) -> None:
    subprocess.run(["/bin/cat", path], check=True, capture_output=True)


def system_call(name: str, *arguments: int) -> None:
    """In a process of its own, which ends with it."""
    code = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os._exit(ctypes.get_errno() if libc.{name}(*{arguments}) == -1 else 0)
"""
    if number := subprocess.run([sys.executable, "-c", code], check=False).returncode:
        raise OSError(number, name)


def in_new_thread(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def in_output_thread(work: Callable[[], object]) -> None:
    """In the thread that reads what is printed: whatever the child has is in our memory."""
    sleep, done = time.sleep, Future[None]()

    def attack(seconds: float) -> None:
        if threading.current_thread().name != "forge-output":
            return sleep(seconds)
        time.sleep = sleep
        try:
            done.set_result(work())
        except OSError as error:
            done.set_exception(error)

    time.sleep = attack
    os.write(1, b"come\n")
    done.result(10)


def fork() -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)


def attacks(on: Targets) -> dict[str, Callable[[], object]]:
    """By what the page on walls says of them."""
    key, engine, other = Path(on["key"]), on.get("engine") or os.getppid(), on["other"]
    return {
        "read the key that opens what clients encrypt": key.read_bytes,
        "the same by a program": lambda: cat(on["key"]),
        "the same from a thread of its own": lambda: in_new_thread(key.read_bytes),
        "the same from the thread that reads output": lambda: in_output_thread(key.read_bytes),
        "read the key that signs history": Path(on["audit"]).read_bytes,
        "read the database": Path(on["database"]).read_bytes,
        "write to the database": lambda: Path(on["database"]).open("ab").close(),
        "connect to the broker": lambda: connect(socket.AF_UNIX, on["broker"]),
        "read the environment of the engine": Path(f"/proc/{engine}/environ").read_bytes,
        "open the memory of the engine": lambda: Path(f"/proc/{engine}/mem").open("rb").close(),
        "see what the engine has open": lambda: os.readlink(f"/proc/{engine}/fd/0"),
        "trace the engine": lambda: system_call("ptrace", PTRACE_SEIZE, engine, 0, 0),
        "signal the engine": lambda: os.kill(engine, 0),
        "read the environment of another process": Path(f"/proc/{other}/environ").read_bytes,
        "signal another process": lambda: os.kill(other, 0),
        "read another workspace": (Path(on["workspace"]) / "file").read_bytes,
        "write to another workspace": lambda: write(Path(on["workspace"]) / "new"),
        "change a file in the user's home": lambda: Path(on["home"], "file").open("r+b").close(),
        "change a file in /tmp": lambda: Path(on["temporary"]).open("r+b").close(),
        "empty a file in /tmp": lambda: os.truncate(on["temporary"], 0),
        "connect to a port of this machine": lambda: connect(socket.AF_INET, ("127.0.0.1", on["port"])),
        "send a datagram to this machine": lambda: connect(socket.AF_INET, ("127.0.0.1", 9), socket.SOCK_DGRAM),
        "connect to an abstract socket": lambda: connect(socket.AF_UNIX, f"\0{on['abstract']}"),
        "make a user namespace": lambda: system_call("unshare", NEW_USER),
        "see the command lines of other processes": Path(f"/proc/{other}/cmdline").read_bytes,
        "change the mode of a file outside": lambda: os.chmod(on["touched"], 0o600),
        "write to and list its workspace": lambda: (write(Path("new")), os.listdir()),
        "write to its home and temporary files": lambda: (write(Path.home() / "new"), tempfile.TemporaryFile().close()),
        "import what was not imported before": lambda: importlib.import_module("wave"),
        "run programs": lambda: cat("/etc/passwd"),
        "fork": fork,
        "run an event loop of its own": lambda: asyncio.run(asyncio.sleep(0)),
    }


def tried(on: Targets) -> dict[str, str]:
    """A command is told who the engine is, whose half it has not; what it is not shown is not there."""
    found, refusals = {}, {errno.EACCES, errno.EPERM}
    if "engine" in on:
        refusals |= {errno.ENOENT, errno.ESRCH, errno.EROFS}
    for name, attack in attacks(on).items():
        if "engine" in on and name.startswith("the same from"):  # threads of a child of the process lane
            found[name] = "-"
            continue
        try:
            attack()
            found[name] = "yes"
        except OSError as error:
            found[name] = "no" if error.errno in refusals else repr(error)
        except Exception as error:
            found[name] = "no" if isinstance(error, subprocess.CalledProcessError) else repr(error)
    return found


@tool(walls="plain")
def attack_from_plain(on: dict[str, Any]) -> dict[str, str]:
    """Try all."""
    return tried(on)


@tool(walls="landlock")
def attack_from_landlock(on: dict[str, Any]) -> dict[str, str]:
    """Try all."""
    return tried(on)


@tool(walls="landlock")
def read_walled(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@tool(walls="landlock")
def connect_walled(port: int) -> None:
    """Connect to a port."""
    connect(socket.AF_INET, ("127.0.0.1", port))


if __name__ == "__main__":
    print(json.dumps(tried(json.loads(sys.argv[1]))))
