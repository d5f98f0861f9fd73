"""The page on a session is true: its program runs on two hosts in turn, with a model that answers as on the page."""

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import click

from tests.fleet import ROOT, Fleet
from tests.model_servers.chat import ChatServer
from tests.model_servers.wire import Say
from tests.unit.tools.notebook.notebooks import notebook, text, written
from tests.unit.tools.web.site import page, site
from tests.warm import WarmInterpreter

PAGE = (ROOT / "docs/session.md").read_text()
[PROGRAM] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PARTS = re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
TASKS = re.findall(r'`python agent.py "(.*?)"`', PAGE)
WIKI = "http://wiki.internal:8080"
COLOURS = b"<title>Colours</title><main><h1>Colours</h1><p>A colour is an <b>escape sequence</b>: <code>ESC[31m</code>.</p></main>"


def calls(part: str) -> list[tuple[str, dict[str, Any], list[str]]]:
    """The calls of a part of the page: tool, arguments, and the lines that it answers."""
    shown = []
    for one in re.split(r"^> ", part, flags=re.MULTILINE)[1:]:
        call, *answer = one.rstrip("\n").split("\n")
        tool, _, arguments = call.partition(" ")
        shown.append((tool, json.loads(arguments), answer))
    return shown


def is_as_shown(answer: str, shown: list[str]) -> bool:
    """`...` stands for any lines; numbers differ with the release of what is looked at, ids with each run."""
    pattern = "\n".join(r"(?s:.*)" if line == "..." else re.escape(plain(line)) for line in shown)
    return re.fullmatch(pattern, plain(answer)) is not None


def plain(said: str) -> str:
    return re.sub(r"\b[0-9a-f]{8}\b|\d+", "0", said)


async def run_part(part: str, task: str, fleet: Fleet, url: str, program: WarmInterpreter) -> None:
    shown = calls(part)
    script = [
        Say(calls=((f"call_{n}", tool, json.dumps(arguments).replace(WIKI, url)),))
        for n, (tool, arguments, _) in enumerate(shown)
    ]
    with ChatServer(*script, Say("That is it.")) as server:
        environment = fleet.environment() | {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "test"}
        words = ["-c", PROGRAM, task]
        done = await asyncio.to_thread(program.run, words, cwd=fleet.folder, env=environment, timeout=120)
        told = [one["content"] for one in server.requests[-1]["messages"] if one["role"] == "tool"]
    assert (done.stdout, done.stderr) == ("That is it.\n", "")
    for (tool, _, lines), answer in zip(shown, told, strict=True):
        assert is_as_shown(answer.replace(url, WIKI), lines), f"{tool}\n{answer.replace(url, WIKI)}"


async def test_the_session_of_the_page_goes_on_on_another_host(
    valkey_server: Any, postgres: Any, tmp_path: Path
) -> None:
    shutil.copytree(Path(click.__file__).parent, tmp_path / "lib/click", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "notes.ipynb").write_bytes(written(notebook(text("# Notes", id="title"))))
    database, program = (
        postgres.create_database(),
        WarmInterpreter("openai", "forge_tools.adapters.openai", "forge_tools.client"),
    )
    valkey_server.flush()
    fleet = Fleet(tmp_path, valkey_server.url, database)
    try:
        async with site({"/colours": page(COLOURS)}) as one:
            web = {"web_allowed": '["127.0.0.1"]', "web_ports": f"[{one.port}]"}
            for host, part, task in zip("ab", PARTS, TASKS, strict=True):
                for lane in ("async", "process"):
                    fleet.start(lane, hostname=host, tools="forge_tools.tools:BUILTINS", **web)
                await run_part(part, task, fleet, one.url(host="127.0.0.1").rstrip("/"), program)
                fleet.stop()
    finally:
        fleet.stop()
        program.close()
        postgres.drop_database(database)
    cells = json.loads((tmp_path / "notes.ipynb").read_text())["cells"]
    assert [one["cell_type"] for one in cells] == ["markdown", "markdown"]
