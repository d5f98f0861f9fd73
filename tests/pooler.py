"""A real PgBouncer for the tests that `FORGE_TEST_PGBOUNCER=1` asks for, between a Store and the session's PostgreSQL."""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from tests.server_process import ServerProcess, ServiceMissingError, free_port

NAME, VARIABLE = "PgBouncer", "FORGE_TEST_PGBOUNCER"
FOLLOWS = (1, 21)
"""The first version that can follow prepared statements."""
SERVERS = 2
"""Connections to PostgreSQL that all clients of one database share: so few that statements of one client meet both."""


def is_wanted() -> bool:
    """Whether this run is asked to test behind a pooler too: no wheel brings one."""
    return os.environ.get(VARIABLE) == "1"


class Pooler:
    """PgBouncer on a loopback port, before the PostgreSQL of `server_url`; whoever knows that password may use it."""

    def __init__(
        self, folder: Path, server_url: str, mode: str = "transaction", *, follows: bool = True, **settings: object
    ) -> None:
        self._server = urlsplit(server_url)
        self._program = find_pgbouncer()
        self._can_follow = version_of(self._program) >= FOLLOWS
        self.follows_statements = follows and self._can_follow
        self._port = free_port()
        user = pwd.getpwnam("nobody") if os.getuid() == 0 else None  # it refuses to run as root
        folder.mkdir(mode=0o700, exist_ok=True)
        self._file = folder / f"{mode}.ini"
        (folder / "users.txt").write_text(f'"{self._server.username}" "{self._server.password}"\n')
        self._file.write_text(self._configuration(folder, mode, settings))
        for path in (folder, *folder.iterdir()) if user else ():
            os.chown(path, user.pw_uid, user.pw_gid)
        self.process = ServerProcess("PgBouncer", folder / f"{mode}.log", user=user, death_signal=signal.SIGKILL)

    def start(self) -> Self:
        self.process.start([self._program, str(self._file)], self._answers)
        return self

    def stop(self) -> None:
        """At once: SIGTERM leaves in good order only where clients do."""
        self.process.kill()

    def restart(self) -> None:
        self.process.kill()
        self.start()

    def url(self, direct: str, *, says_so: bool = True) -> str:
        """The way to the database of that URL through this pooler; `says_so`: as `FORGE_DATABASE_POOLER=transaction` has it."""
        parts = urlsplit(direct)
        place = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self._port}"
        return urlunsplit(parts._replace(netloc=place, query="pooler=transaction" if says_so else ""))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _configuration(self, folder: Path, mode: str, settings: dict[str, object]) -> str:
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": self._port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": folder / "users.txt",
            "pool_mode": mode,
            "default_pool_size": SERVERS,
            "max_client_conn": 500,
            "server_idle_timeout": 5,
            **({"max_prepared_statements": 100 if self.follows_statements else 0} if self._can_follow else {}),
            **settings,
        }
        said = "\n".join(f"{name} = {value}" for name, value in lines.items())
        return f"[databases]\n* = host={self._server.hostname} port={self._server.port}\n[pgbouncer]\n{said}\n"

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


def version_of(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    assert found, said
    return tuple(map(int, found.groups()))


def find_pgbouncer() -> str:
    """Where it is; some systems keep it out of the PATH of ordinary users."""
    path = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        raise ServiceMissingError(
            f"{VARIABLE}=1 asks for tests behind PgBouncer, and there is none. Install your system's package, such as "
            f"`apt-get install pgbouncer`, or unset {VARIABLE}."
        )
    return path
