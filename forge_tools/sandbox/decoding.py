"""Decodes images, documents and pages in a separate process, so that crafted input can break nothing else."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from forge_tools.errors import SandboxError
from forge_tools.model.content import human
from forge_tools.sandbox.paths.confinement import OPEN_FOLDER, Descriptor
from forge_tools.sandbox.processes.commands import run
from forge_tools.sandbox.processes.spawner import Spawner

SECONDS = 30.0
UNDECODABLE = "UNDECODABLE"

DECODER = str(Path(__file__).with_name("decoder.py"))
_MOST_OUTPUT = 64 << 20
_NEEDED_BY = dict.fromkeys(("selectolax", "html_to_markdown"), ("web", "ENGINE_NOT_AVAILABLE"))


async def decoded(
    name: str, source: int | bytes, what: str, seconds: float, **told: Any
) -> tuple[dict[str, Any], bytes]:
    """Decode bytes or an open file; return facts and bytes. The output of the process is trusted no more than the file."""
    output = bytearray()

    def take(chunk: bytes) -> bool:
        output.extend(chunk)
        return len(output) <= _MOST_OUTPUT

    with Descriptor(os.open("/", OPEN_FOLDER | getattr(os, "O_PATH", 0))) as folder:  # which walls do not refuse
        done = await run(
            ["the decoder", json.dumps(told)],
            folder=folder.fd,
            environment={},
            timeout=min(SECONDS, seconds),
            stdin=source,
            stdout=take,
            stderr=lambda _: True,  # warnings of libraries would spoil the answer
            start=decoder(what).start,
        )
    end = output.find(b"\n") + 1
    try:
        facts: dict[str, Any] = json.loads(output[:end])
    except ValueError:
        why = f"its decoder ended with {f'signal {done.signal}' if done.signal else f'code {done.exit_code}'}"
        if done.timed_out:
            why = f"decoding it took longer than {min(SECONDS, seconds):g}s"
        elif done.stopped:
            why = f"its decoded form is larger than {human(_MOST_OUTPUT)}"
        facts = {"error": why}
    if "missing" in facts:
        missing = facts["missing"]
        extra, code = _NEEDED_BY.get(missing.partition(".")[0], ("media", "BINARY_FILE"))
        lacks = f"this worker lacks {missing}. pip install 'forge-tools[{extra}]'"
        raise SandboxError(f"{name} cannot be shown: {lacks}", code)
    if "error" in facts:
        raise SandboxError(f"{name} cannot be shown: {facts['error']}", UNDECODABLE)
    return facts, bytes(memoryview(output)[end:])


@cache
def decoder(what: str) -> Spawner:
    """Keep a decoder ready that has the libraries for this kind of file."""
    return Spawner(program=(DECODER, what))
