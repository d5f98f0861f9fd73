"""The second day at the command line: why a call failed, and what it printed."""

import json
import re

from tests.e2e.cli_driver import Cli

TOOLS = '''
import logging
import os

from forge_tools import ToolFailure
from forge_tools.tool import tool


@tool
def weather(city: str) -> str:
    """Say how warm it is."""
    print("looking for", city)
    logging.getLogger("forecast").warning("no cache")
    if city.islower():
        raise ToolFailure(f"There is no city {city!r}.", hint="Names begin with a capital letter.")
    return {"Paris": "21"}[city]


@tool
def chatter() -> str:
    """Print in every way."""
    print("printed")
    os.write(1, b"written\\n")
    os.system("echo from a shell")
    return "done"


TOOLS = (weather, chatter)
'''
LINE = 'return {"Paris": "21"}[city]'


def failed(cli: Cli, city: str) -> str:
    done = cli.run("--output", "json", "run", "weather", f"city={city}")
    assert done.returncode == 1
    return str(json.loads(done.stdout)["id"])


def place() -> str:
    """The line, as seen from the folder of the stack."""
    number = 1 + TOOLS.splitlines().index(f"    {LINE}")
    return f"mytools.py:{number} in weather"


def test_the_failed_line_is_on_the_screen_at_once(cli: Cli) -> None:
    done = cli.run("run", "weather", "city=Rome")

    where = place()
    assert done.stderr.splitlines()[:2] == ["Error: Unexpected error: KeyError: 'Rome'", f"KeyError: 'Rome' ({where})"]
    listed = cli.run("history", "--error", "KeyError", "--limit", "1").stdout
    head, why = listed.splitlines()
    assert why == f"    KeyError: 'Rome' ({where})"
    shown = cli.run("show", head.split()[0]).stdout
    assert f"  {where}\n      {LINE}\n" in shown
    assert re.search(r"Logs\n\S+ stdout +looking for Rome\n\S+ warning +forecast: no cache\n", shown)


def test_what_a_call_printed_is_listed_and_what_it_logged_alone(cli: Cli) -> None:
    id_ = failed(cli, "Rome")

    assert [line.split(None, 1)[1] for line in cli.run("logs", id_).stdout.splitlines()] == [
        "stdout   looking for Rome",
        "warning  forecast: no cache",
    ]
    [logged] = cli.run("-o", "json", "logs", id_, "--level", "warning", "--follow").stdout.splitlines()
    told = json.loads(logged)
    assert (told["stream"], told["level"], told["text"]) == ("log", "warning", "forecast: no cache\n")
    assert cli.run("logs", id_, "--level", "error").stdout == ""
    assert "is not a level; there are debug" in cli.run("logs", id_, "--level", "loud").stderr
    shown = json.loads(cli.run("-o", "json", "show", id_).stdout)
    assert shown["diagnosis"]["type"] == "KeyError"
    assert "".join(one["text"] for one in shown["logs"]) == "looking for Rome\nforecast: no cache\n"


def test_what_an_author_means_is_said_without_a_place(cli: Cli) -> None:
    done = cli.run("run", "weather", "city=rome")

    assert done.stderr.splitlines()[:2] == ["Error: There is no city 'rome'.", "Names begin with a capital letter."]


def test_in_process_the_standard_output_is_one_document_whatever_is_printed(cli: Cli) -> None:
    done = cli.run("-o", "json", "run", "--local", "--tools", "mytools:chatter", "chatter")

    assert json.loads(done.stdout)["output"] == "done"
    assert {"printed", "written", "from a shell"} <= set(done.stderr.splitlines())
