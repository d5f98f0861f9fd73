"""Importing the client costs its own libraries only; Celery waits for the first publish."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.services import GivenValkey, ValkeyServer, client

ROOT = Path(__file__).resolve().parents[2]

TOOLS = (
    "forge_tools.tools",
    "forge_tools.tool.base",
    "forge_tools.tool.registry",
    "forge_tools.tool.executor",
    "forge_tools.tool",
)
WORKERS = ("workers", "forge_tools.embedded", "forge_tools.cli", "forge_tools.sandbox")
WEB = ("fastapi", "starlette", "uvicorn", "flask", "django", "aiohttp", "jinja2", "http.server")
CELERY = ("celery", "kombu", "billiard", "vine", "amqp")
LANGCHAIN = ("langchain", "langchain_core", "langsmith", "forge_tools.langchain")
FACES = ("typer", "click", "rich")
SQL = ("sqlalchemy", "greenlet", "alembic", "aiosqlite", "asyncpg")
KEYS = ("cryptography.hazmat",)  # the redis client looks whether the package is there, and no further

IMPORT_ONLY = """
import json, sys
import forge_tools.client
print(json.dumps(sorted(sys.modules)))
"""

FIRST_PUBLISH = """
import asyncio, json, sys
from forge_tools.broker.celery_app import open_broker
from forge_tools.broker.message import Message
from forge_tools.time_limits import CeleryLimits
from forge_tools.model.execution import Wakeup

async def publish():
    broker = open_broker(sys.argv[1])
    before = sorted(sys.modules)
    broker.publish(Message("default", "async", (Wakeup("id", 0),), CeleryLimits(1, 2)))
    await broker.close()
    assert not broker.is_down
    return before, sorted(sys.modules)

print(json.dumps(asyncio.run(publish())))
"""


def fresh(code: str, *arguments: str) -> list[object]:
    """Run code in a fresh interpreter and read the JSON that it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FORGE_", "COVERAGE"))}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def among(loaded: Iterable[object], packages: tuple[str, ...]) -> list[str]:
    return [str(module) for module in loaded if f"{module}.".startswith(tuple(f"{package}." for package in packages))]


@pytest.fixture(scope="module")
def loaded() -> list[object]:
    """What a fresh interpreter holds after `import forge_tools.client`."""
    return fresh(IMPORT_ONLY)


@pytest.mark.parametrize(
    "packages",
    [TOOLS, WORKERS, WEB, CELERY, LANGCHAIN, FACES, SQL, KEYS],
    ids=["tools", "workers", "web", "Celery", "LangChain", "terminal", "SQL", "cryptography"],
)
def test_the_client_alone_loads_none_of(loaded: list[object], packages: tuple[str, ...]) -> None:
    assert among(loaded, packages) == []


def test_the_package_alone_loads_none_of_its_modules() -> None:
    alone = fresh("import json, sys; import forge_tools; print(json.dumps(sorted(sys.modules)))")

    assert among(alone, ("forge_tools",)) == ["forge_tools"]


def test_the_list_of_what_is_loaded_is_a_real_one(loaded: list[object]) -> None:
    assert among(loaded, ("forge_tools.client.client",))


def test_a_publish_into_redis_needs_no_celery(valkey: ValkeyServer | GivenValkey) -> None:
    _, after = fresh(FIRST_PUBLISH, valkey.url)

    assert isinstance(after, list)
    assert among(after, CELERY) == []
    with client(valkey.url) as server:
        assert server.llen("forge:forge.default.async") == 1


def test_celery_is_loaded_by_the_first_publish_elsewhere() -> None:
    before, after = fresh(FIRST_PUBLISH, "memory://")

    assert isinstance(before, list)
    assert isinstance(after, list)
    assert among(before, CELERY) == []
    assert {"celery", "kombu"} <= set(after)


def test_the_command_that_lists_history_loads_no_other_part_of_the_store() -> None:
    loaded = fresh("import json, sys\nimport forge_tools.cli.history\nprint(json.dumps(sorted(sys.modules)))")

    assert "forge_tools.storage.history.history" in loaded
    others = ("store", "queue", "audit", "artifacts", "catalogue", "history.overview")
    assert among(loaded, tuple(f"forge_tools.storage.{one}" for one in others)) == []


WITHOUT_ORM = """
import json, sys
import workers.app
import forge_tools.storage.sqlalchemy_engine as ours
loaded = sorted(sys.modules)
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
assert AsyncEngine is ours.AsyncEngine and AsyncSession.__module__ in sys.modules
print(json.dumps(loaded))
"""


def test_a_worker_loads_no_orm_and_its_tools_may() -> None:
    assert among(fresh(WITHOUT_ORM), ("sqlalchemy.orm", "sqlalchemy.ext.asyncio.session")) == []


def test_the_command_that_runs_a_tool_loads_no_client_before_it_needs_one_and_no_tool_at_all() -> None:
    loaded = fresh("import json, sys\nimport forge_tools.cli.run\nprint(json.dumps(sorted(sys.modules)))")

    assert "forge_tools.cli.run" in loaded
    assert among(loaded, (*TOOLS, *CELERY, "forge_tools.client", "sqlalchemy", "redis")) == []


LOCAL_CALL = """
import json, sys
from contextlib import redirect_stdout, suppress
from forge_tools.cli import main
with redirect_stdout(sys.stderr), suppress(SystemExit):
    assert main(["run", "ListShells", "--local"]) is None
print(json.dumps(sorted(sys.modules)))
"""


def test_a_call_in_the_process_of_the_command_line_loads_no_client() -> None:
    loaded = fresh(LOCAL_CALL)

    assert "forge_tools.tool.executor" in loaded
    assert among(loaded, (*CELERY, "forge_tools.client", "sqlalchemy", "redis")) == []
