"""`forge-tools init`: a starter project, with a tool and its test."""

import os
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from typer import Argument

from forge_tools.cli.face import App, Face, naming
from forge_tools.errors import ConfigurationError
from forge_tools.project import FILE, find_project

TOOL = '''\
from forge_tools.tool import tool


@tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper() + "!"
'''

TEST = """\
from forge_tools.testing import InlineExecutor
from mytools import shout


def test_shout() -> None:
    with InlineExecutor(shout) as tools:
        assert tools.run("shout", text="hello").output == "HELLO!"
"""

PROJECT = """\
[tool.forge-tools]
tools = ["mytools"]
"""

app = App()


@app.command()
def init(
    face: Face, folder: Annotated[Path, Argument(help="The folder; created if it does not exist.")] = Path()
) -> None:
    """Create a project of ten lines: mytools.py with one tool, its test, and the pyproject.toml that names it.

    Nothing is overwritten; an existing pyproject.toml gets two more lines.
    """
    files = {"mytools.py": TOOL, "test_mytools.py": TEST}
    if taken := next((name for name in files if (folder / name).exists()), None):
        raise ConfigurationError(f"{folder / taken} exists already. Name another folder: forge-tools init FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    project = find_project(folder)
    if project is not None and project.folder == folder.absolute():
        raise ConfigurationError(f"{folder / FILE} names tools already: {', '.join(project.tools) or 'none'}.")
    file = (folder / FILE).resolve()  # not a link to it, which the undo would remove
    with naming(folder), ExitStack() as undo:
        for name, text in files.items():
            with (folder / name).open("x") as new:  # not through a link to nothing, for which `exists` is false
                undo.callback((folder / name).unlink)
                new.write(text)
        with file.open("a") as project_file:
            before = project_file.tell()
            undo.callback(os.truncate, file, before) if before else undo.callback(file.unlink)
            project_file.write(f"\n{PROJECT}" if before else PROJECT)
        undo.pop_all()
    written = [*files, FILE]
    there = "" if folder.resolve() == Path.cwd() else f"  cd {shlex.quote(str(folder))}\n"
    face.tell(
        {"folder": str(folder.absolute()), "files": written},
        f"Wrote {', '.join(written)}. Try:\n{there}  forge-tools run --local shout text=hello\n  forge-tools dev\n  pytest",
    )
