"""What the connections to a PostgreSQL server come to: how many it takes, how many there are, and what they need of their role."""

from getpass import getuser
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from forge_tools.storage.address import Address
from forge_tools.storage.engine import CLIENT_SECONDS, HELD, LONG_READS, MORE, STATEMENT_SECONDS, Database
from forge_tools.storage.postgres import MOST
from forge_tools.storage.statements import settings

IDLE_WORKER = 2
"""That of its heartbeats, and that of its duties. A client needs one of them."""

MOST_OF_ONE = MOST + HELD + MORE + LONG_READS
"""What a worker or a client opens when everything happens at once."""


class Connections(NamedTuple):
    """As the server says it: `most` for roles without privileges, `open` to all of its databases, `ours` of any forge-tools."""

    most: int
    open: int
    ours: int
    statement_ms: int
    """What a statement may take by the settings of this very connection; 0: for ever."""

    @property
    def is_limited(self) -> bool:
        """Whether the server ends a statement before the client stops waiting for it."""
        return 0 < self.statement_ms <= CLIENT_SECONDS * 1000


async def read_connections(database: Database) -> Connections:
    """Ask the server; one that is PostgreSQL."""
    [question] = settings("postgresql", "connections")
    async with database.reading() as connection:
        return Connections._make((await connection.exec_driver_sql(question)).one())


def role_setting(url: str) -> str:
    """The statement that gives the role of that URL what a direct connection asks for as it begins."""
    parts = urlsplit(Address.parse(url).target)
    role = unquote(parts.username or getuser())
    database = unquote(parts.path[1:]) or role
    return (
        f"ALTER ROLE {_quoted(role)} IN DATABASE {_quoted(database)} SET statement_timeout = '{STATEMENT_SECONDS:g}s'"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
