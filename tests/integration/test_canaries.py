"""Secrets are seeded everywhere, and then every byte that was written anywhere is searched for them."""

import asyncio
import base64
import json
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import SecretStr

from forge_tools.client import ExecutorClient
from forge_tools.model import ExecutionContext
from tests.fleet import Fleet
from tests.mcp_process import McpProcess
from tests.recording import RecordingProxy
from tests.services import PostgresServer, ValkeyServer
from tests.waiting import wait_until, within

TOOLS = "tests.leaky_tools:TOOLS"
LANES = ("Leak", "LeakOnLoop")


START = "canary"


def forms(text: str) -> Iterator[bytes]:
    """How it may have been written, without what depends on what stands before or after it."""
    data = text.encode()
    yield data
    yield data.hex().encode()
    for before in range(3):
        yield base64.b64encode(bytes(before) + data)[4 : min(28, (before + len(data)) * 4 // 3)]


STARTS = tuple(forms(START))
"""One of them is wherever a canary is: most files are through after a few searches, not five for each canary."""


class Canaries:
    """Secrets that nothing else contains, by the door they went in."""

    def __init__(self) -> None:
        self.cores: dict[str, str] = {}

    def new(self, door: str) -> str:
        core = self.cores[door] = f"{START}{secrets.token_hex(12)}"
        return f'{core}"\\é/+'

    def found_in(self, data: bytes) -> set[str]:
        if not any(start in data for start in STARTS):
            return set()
        return {door for door, core in self.cores.items() if any(form in data for form in forms(core))}


class Scene:
    """A database, Valkey behind a recorder, a fleet, and every file they write, in one folder."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.postgres = PostgresServer(folder / "pg").start() if database == "postgres" else None
        self.valkey = ValkeyServer(folder / "valkey").start()
        self.wire = folder / "wire"
        socket = folder / "wire.sock"
        self.proxy = RecordingProxy(socket, self.valkey.socket, self.wire).__enter__()
        self.url = self.postgres.create_database() if self.postgres else f"sqlite:///{folder / 'forge.db'}"
        self.fleet = Fleet(folder, f"redis+socket://{socket}", self.url, kill_grace=1.0)
        self.canaries = Canaries()

    def start(self, lane: str, **environment: str) -> Any:
        return self.fleet.start(lane, tools=TOOLS, **environment)

    def stop(self) -> None:
        self.fleet.stop()
        for log in sorted(self.folder.glob("worker-*.log")):  # shown where the test fails
            print(log.name, log.read_text(errors="replace"), sep="\n")
        self.proxy.__exit__()
        self.valkey.stop()
        if self.postgres:
            self.postgres.stop()

    def written(self) -> Iterator[tuple[Path, bytes]]:
        for path in self.folder.rglob("*"):
            if path.is_file():
                yield path, path.read_bytes()

    def leaks(self) -> list[tuple[str, str]]:
        return sorted(
            (door, str(path.relative_to(self.folder)))
            for path, data in self.written()
            for door in self.canaries.found_in(data)
        )

    async def rows(self) -> str:
        """Every row as text: what is long is compressed in the files of PostgreSQL."""
        if not self.postgres:
            return ""
        connection = await asyncpg.connect(self.url)
        try:
            names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            tables = [await connection.fetch(f'SELECT t::text FROM "{name}" t') for (name,) in names]
        finally:
            await connection.close()
        return "\n".join(row[0] for rows in tables for row in rows)


@pytest.fixture(params=["postgres", "sqlite"])
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    folder = Path(tempfile.mkdtemp(prefix="fc-", dir="/tmp"))  # sockets of workers go there, so its path is short
    folder.chmod(0o755)  # as root, PostgreSQL runs as somebody else
    (folder / "tmp").mkdir()
    scene = Scene(folder, request.param)
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    yield scene
    scene.stop()
    shutil.rmtree(folder)


@pytest.fixture
async def client(scene: Scene) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(scene.fleet.settings) as client:
        yield client


@pytest.mark.timeout(180)
async def test_no_secret_is_in_any_byte_that_was_written(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    by_name, by_file = scene.canaries.new("by name"), scene.canaries.new("by file")
    monkeypatch.setenv("FORGE_SECRET_BY_NAME", by_name)
    given = scene.folder.parent / f"{scene.folder.name}-given"
    given.mkdir()
    (given / "BY_FILE").write_text(by_file + "\n")
    try:
        workers = {
            lane: scene.start(lane, secrets_dir=str(given), references_in='["Bash"]') for lane in ("async", "process")
        }
        context = ExecutionContext(working_dir=str(scene.folder), session_id="s", agent_id="a")
        digest_key = scene.canaries.new("digest key")
        settings = scene.fleet.settings.model_copy(
            update={"digest_key": SecretStr(digest_key), "encrypt_patterns": (r"PIN-canary[0-9a-f]{24}",)}
        )
        async with ExecutorClient(settings) as client:
            await _seed(client, context, scene)
            await _seed_references(client, context)
            await _seed_shells(client, context, scene)
            await asyncio.to_thread(_seed_over_mcp, scene)
            if scene.postgres:
                await _outlive_a_worker(client, context, scene, workers["process"])
            rows = await scene.rows()
            written = {path.name for path, _ in scene.written()}  # SQLite's log goes with whoever uses it last
            seen_alive = {door for door, _ in scene.leaks()}
    finally:
        scene.stop()
        shutil.rmtree(given)

    assert scene.canaries.found_in(rows.encode()) <= {"control"}
    leaks = scene.leaks()
    assert {door for door, _ in leaks} == seen_alive == {"control"}, leaks
    for start in ("pg/data/base", "pg/data/pg_wal") if scene.postgres else ("forge.db",):
        assert any(path.startswith(start) for _, path in leaks)
    assert "forge.db-wal" in written or scene.postgres
    assert any(name.endswith(".out") for name in written), "the spools of shells are not among what is searched"
    assert any(name.startswith("mcp-") for name in written)
    assert scene.wire.stat().st_size > 1_000
    assert b"forge.default.process" in scene.wire.read_bytes()


async def _seed(client: ExecutorClient, context: ExecutionContext, scene: Scene) -> None:
    new = scene.canaries.new
    control = new("control")
    for _ in range(2):  # a page of PostgreSQL's log may begin within one
        await client.execute("Leak", context, secret="nothing-to-see", note=control)
    for name in LANES:
        for how in ("returned", "raised", "failed", "retried", "long"):
            mark = str(scene.folder / f"mark-{name}-{how}")
            await client.execute(name, context, secret=new(f"{how} by {name}"), how=how, mark=mark)
        secret = new(f"in the metadata of {name}")
        told = context.model_copy(update={"metadata": {"api_key": secret, "note": f"key={secret}"}})
        await client.execute(name, told, secret="nothing-to-see", note=f"with {secret}")
        nested = {"user": "u", "list": [{"password": new(f"nested in {name}")}]}
        await client.execute(name, context, key=nested)
        await client.execute(name, context.model_copy(update={"dry_run": True}), secret=new(f"dry run of {name}"))
        await client.execute(name, context, secrt=new(f"misspelt for {name}"))
        await client.execute(name, context, secret=new(f"invalid for {name}"), how=7)
        secret = new(f"in another parameter of {name}")
        await client.execute(name, context, secret=secret, note=f"http://host/?key={secret}")
        secret = new(f"in another parameter of an invalid call of {name}")
        await client.execute(name, context, secret=secret, note=f"http://host/?key={secret}", how=7)
        secret = new(f"under a key for {name}")
        handle = await client.submit(name, {"secret": secret}, context, idempotency_key=name)
        assert (await handle.result(30)).success
        other = await client.call(
            name, {"secret": new(f"under the same key for {name}")}, context, idempotency_key=name
        )
        assert other.metadata["differing"] == ["secret"]
        again = await client.calls.replay(handle.id, {"secret": new(f"replayed for {name}")})
        assert (await again.result(30)).success
    plain = {"pattern": "x", "password": new("unknown name for a tool without secrets")}
    assert not (await client.execute("Grep", context, **plain)).success
    await client.execute("Leek", context, secret=new("unknown tool"), note=new("note of an unknown tool"))
    command = 'echo "$API_TOKEN"; seq 60000; echo "$API_TOKEN" >&2; printf %s "$API_TOKEN" | base64'
    ran = await client.execute(
        "Bash", context, command=command, env={"API_TOKEN": new("environment of Bash"), "A": "b"}
    )
    assert "artifact" in ran.metadata, ran
    kept = b"".join([chunk async for chunk in client.history.artifact(ran.metadata["artifact"])])
    assert kept.startswith(b"[redacted]\n1\n2\n")
    assert not scene.canaries.found_in(kept)
    failed = await client.execute("Bash", context, command="echo $A_TOKEN; exit 3", env={"A_TOKEN": "secret://BY_NAME"})
    assert "[redacted]" in str(failed.output), failed
    dying = await client.execute("Leak", context, secret=new("killed"), how="killed", mark=str(scene.folder / "mark-k"))
    assert dying.success, dying
    waiting = await client.submit("Leak", {"secret": new("never run")}, context, delay=3600)
    assert await waiting.cancel() == "cancelled"
    await client.submit("Leak", {"secret": new("still waiting")}, context, delay=3600)


async def _seed_references(client: ExecutorClient, context: ExecutionContext) -> None:
    for name in LANES:
        for reference in ("secret://BY_NAME", "secret://BY_FILE"):
            for how in ("returned", "raised"):
                result = await client.execute(name, context, secret=reference, how=how)
                assert "[redacted]" in f"{result.output}{result.error}"
        result = await client.execute(name, context, secret={"deep": ["secret://BY_FILE"]})
        assert result.success


async def _seed_shells(client: ExecutorClient, context: ExecutionContext, scene: Scene) -> None:
    """What outlives its call has files of its own."""
    found = f"PIN-{scene.canaries.new('found by its looks')[:30]}"
    ran = await client.execute("Bash", context, command=f"echo {found}")
    assert ran.output["stdout"].startswith("[redacted]") if isinstance(ran.output, dict) else "[redacted]" in ran.output
    for name, command, variables in (
        ("found by its looks in a shell", "echo PIN-{}; sleep 60", {}),
        (
            "environment of a shell",
            'echo "$API_TOKEN"; printf %s "$API_TOKEN" | base64 -w0; sleep 60',
            {"API_TOKEN": "{}"},
        ),
    ):
        secret = scene.canaries.new(name)[:30]
        env = {key: value.format(secret) for key, value in variables.items()}
        asked = {"command": command.replace("{}", secret), "env": env, "run_in_background": True}
        shell = await client.execute("Bash", context, **asked)
        assert shell.success, shell
        read = await client.execute("BashOutput", context, bash_id=shell.metadata["bash_id"], wait_ms=10_000)
        assert str(read.output).startswith("[redacted]"), read
        assert (await client.execute("KillShell", context, shell_id=shell.metadata["bash_id"])).success


def _seed_over_mcp(scene: Scene) -> None:
    """The server's log is in the folder, and what it tells its client is looked at here."""
    server = McpProcess(scene.fleet.environment(), scene.folder).greet()
    try:
        for name in LANES:
            for how in ("returned", "raised"):
                secret = scene.canaries.new(f"{how} over MCP by {name}")
                params = {"name": name, "arguments": {"secret": secret, "how": how}, "_meta": {"progressToken": name}}
                id_, told = server.begin("tools/call", params), list[dict[str, Any]]()
                time_left = within(60, "the call is not answered")
                while next(time_left) and (not told or told[-1].get("id") != id_):
                    told.append(server.read())
                assert "[redacted]" in str(told[-1])
                assert not scene.canaries.found_in(json.dumps(told).encode())
        server.hang_up()
    finally:
        server.stop()


async def _outlive_a_worker(client: ExecutorClient, context: ExecutionContext, scene: Scene, worker: Any) -> None:
    mark = scene.folder / "mark-slow"
    parameters = {"secret": scene.canaries.new("dead worker"), "how": "slow", "mark": str(mark)}
    handle = await client.submit("Leak", parameters, context)
    await asyncio.to_thread(wait_until, mark.exists, 20, "the body did not start")
    worker.signal(signal.SIGKILL)
    await asyncio.to_thread(scene.start, "process")
    result = await handle.result(60)
    assert (result.success, result.output) == (True, "[redacted]")
