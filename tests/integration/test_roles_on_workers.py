"""A whole stack with the roles of deploy/postgres/: clients and workers that are nobody's owner."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from pydantic import SecretStr

from forge_tools.client import ExecutorClient
from forge_tools.errors import ExecutionNotFoundError, InvalidCallError
from forge_tools.model import ExecutionContext, ExecutionStatus
from forge_tools.storage import migrate
from tests.fleet import Fleet
from tests.services import admin
from tests.waiting import reached

ROLES = (Path(__file__).parents[2] / "deploy" / "postgres" / "roles.sql").read_text()


@pytest.fixture
def people(fresh_postgres: str) -> Iterator[dict[str, str]]:
    """The URLs of two clients and a worker."""
    migrate.upgrade(fresh_postgres)
    admin(fresh_postgres, ROLES)
    password, parts, urls = secrets.token_hex(8), urlsplit(fresh_postgres), {}
    for person, role in (("alice", "forge_client"), ("mallory", "forge_client"), ("walter", "forge_worker")):
        name = f"{person}_{secrets.token_hex(4)}"
        admin(fresh_postgres, f"CREATE ROLE {name} LOGIN PASSWORD '{password}' IN ROLE {role}")
        urls[person] = urlunsplit(parts._replace(netloc=f"{name}:{password}@{parts.hostname}:{parts.port}"))
    yield urls
    for url in urls.values():
        name = urlsplit(url).username
        admin(fresh_postgres, f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_calls_run_and_are_cancelled_and_are_seen_by_their_client_alone(
    tmp_path: Path, valkey: Any, fresh_postgres: str, people: dict[str, str]
) -> None:
    fleet = Fleet(tmp_path, valkey.url, people["walter"], kill_grace=1.0)
    try:
        fleet.start("async")
        fleet.start("process")
        context = ExecutionContext(working_dir=str(tmp_path))
        settings = {
            who: fleet.settings.model_copy(update={"database_url": url, "digest_key": SecretStr("k" * 64)})
            for who, url in people.items()
        }
        async with ExecutorClient(settings["alice"]) as alice, ExecutorClient(settings["mallory"]) as mallory:
            result = await alice.execute("Bash", context, command="echo hello")
            assert (result.success, result.output) == (True, "hello\n"), result
            handle = await alice.submit("Bash", {"command": "sleep 60"}, context, idempotency_key="nap")
            await reached(handle.status, 30, when=lambda status: status is ExecutionStatus.RUNNING)
            with pytest.raises(ExecutionNotFoundError):
                await mallory.calls.cancel(handle.id)
            assert await mallory.history.list() == []
            await alice.calls.cancel(handle.id)
            assert (await handle.result(timeout=30)).error_code == "CANCELLED"
            assert len(await alice.history.list()) == 2
            note = tmp_path / "note.txt"
            note.write_text("from alice")
            handle = await alice.upload(note, session_id="hers")
            for session, said in (("hers", "from alice"), ("his", "ARTIFACT_NOT_FOUND")):
                asked = context.model_copy(update={"session_id": session})
                result = await mallory.execute("Read", asked, file_path=handle)
                assert said in f"{result.output} {result.error_code}"
            admin(fresh_postgres, "REVOKE INSERT ON artifacts FROM forge_client")
            with pytest.raises(InvalidCallError, match=r"run deploy/postgres/roles\.sql of this version"):
                await alice.upload(note)
    finally:
        fleet.stop()
