"""Where a database is, as its URL says it."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from forge_tools.errors import ConfigurationError, SchemaVersionError
from forge_tools.urls import require_readable, without_passwords

LEAST_SQLITE = (3, 37)
"""Older ones know no STRICT tables."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is: a file path or a PostgreSQL URL, and the form of it that people may see."""

    dialect: Literal["sqlite", "postgresql"]
    target: str
    shown: str
    is_pooled: bool = False
    """Whether each transaction may have another connection to the server."""

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Read `sqlite:///path` or `postgresql://...`, with or without the driver's name; `?pooler=transaction` says that a pooler is between.

        Raises:
            ConfigurationError: naming the form that is expected.
        """
        try:
            require_readable(url)
        except ValueError as error:
            raise ConfigurationError(
                f"FORGE_DATABASE_URL: {error}. It begins with sqlite:/// or postgresql://."
            ) from error
        scheme, _, rest = url.partition("://")
        family = scheme.partition("+")[0]
        if family == "sqlite":
            _require_sqlite(sqlite3.sqlite_version_info)
            path = rest.removeprefix("/")
            if not path or ":memory:" in path or not rest.startswith("/"):
                raise ConfigurationError(
                    f"Database URL '{url}' names no file; write sqlite:///relative.db or sqlite:////absolute.db."
                )
            return cls("sqlite", str(Path(path).absolute()), f"sqlite:///{path}")
        if family not in ("postgresql", "postgres"):
            raise ConfigurationError(
                f"Database URL starts with '{scheme[:40]}'; forge_tools stores in sqlite:/// or postgresql://."
            )
        target, pooler = _without_pooler(f"postgresql://{rest}")
        return cls("postgresql", target, without_passwords(target), is_pooled=pooler == "transaction")

    def require_file(self) -> None:
        """Refuse an SQLite file that is not there, before anything opens it."""
        if self.dialect == "sqlite" and not Path(self.target).exists():
            raise SchemaVersionError(
                f"There is no database at {self.target} yet. Run `forge-tools up`, or `forge-tools db upgrade`."
            )

    @property
    def file_uri(self) -> str:
        """The file as a URI that makes SQLite open it, and never create one."""
        return f"file:{quote(self.target)}?mode=rw"


def _without_pooler(url: str) -> tuple[str, str]:
    """The URL as the driver takes it, and the mode of the pooler that it names."""
    place, _, query = url.partition("?")
    settings = query.split("&") if query else []
    modes = [one.removeprefix("pooler=") for one in settings if one.startswith("pooler=")]
    if not set(modes) <= {"none", "transaction"}:
        raise ConfigurationError(
            f"pooler={modes[-1][:40]}: it is `transaction` or `none`. FORGE_DATABASE_POOLER says the same."
        )
    kept = "&".join(one for one in settings if not one.startswith("pooler="))
    return f"{place}?{kept}" if kept else place, modes[-1] if modes else "none"


def _require_sqlite(version: tuple[int, ...]) -> None:
    if version < LEAST_SQLITE:
        have, least = (".".join(map(str, numbers)) for numbers in (version, LEAST_SQLITE))
        raise ConfigurationError(
            f"This Python comes with SQLite {have}; forge_tools needs {least} or later. Run it with another Python, such as one that "
            "`uv python install` brings, or name a PostgreSQL database: FORGE_DATABASE_URL=postgresql://..."
        )
