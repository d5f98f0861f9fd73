"""The page on idempotency keys and replays is true: its snippets run, in order, on real workers."""

import ast
import inspect
import re
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.e2e.cli_driver import MODULE, warm_command
from tests.fleet import ROOT, Fleet

PAGE = ROOT / "docs" / "idempotency.md"
LANGUAGES = {"python", "sh", "sql"}
SNIPPETS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


async def test_the_snippets_run_in_the_order_of_the_page(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = fleet.environment(digest_key="the secret of this page")
    for name, value in environment.items():
        if name.startswith("FORGE_"):
            monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    for language, text in SNIPPETS:
        if language == "python":
            await _run_python(text, names)
        elif language == "sh":
            _run_shell(text, environment, tmp_path)
        else:
            assert await _query(text, fleet.settings.database)

    assert {language for language, _ in SNIPPETS} == LANGUAGES


async def _run_python(text: str, names: dict[str, Any]) -> None:
    code = compile(text, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    outcome = eval(code, names)
    if inspect.isawaitable(outcome):
        await outcome


def _run_shell(text: str, environment: dict[str, str], folder: Path) -> None:
    done = warm_command().shell(text, MODULE, cwd=folder, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


async def _query(text: str, url: str) -> list[Any]:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        try:
            return connection.execute(text).fetchall()
        finally:
            connection.close()
    server = await asyncpg.connect(url)
    try:
        return list(await server.fetch(text))
    finally:
        await server.close()
