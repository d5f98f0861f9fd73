"""What a migration does to a large table while calls are written to it; CONTRIBUTING.md says how the steps go together."""

from collections.abc import Sequence
from typing import Any

from alembic import op
from sqlalchemy import CursorResult, text

from forge_tools.storage.columns import check_name


def concurrent_index(
    name: str, table: str, columns: Sequence[str], *, where: str | None = None, unique: bool = False
) -> None:
    """Make an index without keeping writers out. It leaves the transaction, so its revision changes nothing before it.

    It may be repeated: what an attempt that was killed left is dropped and made again.
    """
    condition = None if where is None else text(where)
    options: dict[str, Any] = {"unique": unique, "sqlite_where": condition, "postgresql_where": condition}
    if not _is_postgres():
        op.create_index(name, table, columns, **options)
        return
    if _ask("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").scalar():
        raise RuntimeError(
            f"Make {name} in a revision of its own: what comes before it would be done twice after a crash."
        )
    with op.get_context().autocommit_block():
        _ask("SET lock_timeout = 0")  # it waits for older transactions, and keeps nobody waiting meanwhile
        if _ask(f"SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass('{name}')").scalar():
            _ask(f"DROP INDEX CONCURRENTLY {name}")
        op.create_index(name, table, columns, postgresql_concurrently=True, if_not_exists=True, **options)
        _ask("RESET lock_timeout")


def checked_later(table: str, column: str, rule: str, *, sqlite: str | None = None) -> None:
    """Let the CHECK of a column be `rule`, whatever it was; on PostgreSQL for new rows alone until a later revision has it `validated`.

    SQLite looks at every row now. `sqlite` is the rule in its words, where they differ.
    """
    name = check_name(table, column)
    if _is_postgres():
        added = f"ADD CONSTRAINT {name} CHECK ({rule}) NOT VALID"
        _ask(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}, {added}")
    else:
        _remake(table, name, f"CONSTRAINT {name} CHECK ({sqlite or rule})")


def validated(table: str, column: str) -> None:
    """Make sure that the rows which were there keep the CHECK of a column, too; it keeps nobody waiting."""
    if _is_postgres():
        _ask(f"ALTER TABLE {table} VALIDATE CONSTRAINT {check_name(table, column)}")


def unchecked(table: str, column: str) -> None:
    """Drop the CHECK of a column, without which SQLite drops no column."""
    name = check_name(table, column)
    if _is_postgres():
        _ask(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}")
    else:
        _remake(table, name)


def _is_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _ask(statement: str) -> CursorResult[Any]:
    return op.get_bind().exec_driver_sql(statement)


def _remake(table: str, without: str, *added: str) -> None:
    """Make a table of SQLite again, whose constraints cannot be altered, with its rows, indexes and next number; views stay as they are."""
    of_table = f"FROM sqlite_schema WHERE tbl_name = '{table}' AND sql IS NOT NULL"
    definition = _ask(f"SELECT sql {of_table} AND type = 'table'").scalar_one()
    indexes = _ask(f"SELECT sql {of_table} AND type = 'index'").scalars().all()
    parts, _, options = definition.rpartition(")")
    kept = "\n".join(line for line in parts.splitlines() if f"CONSTRAINT {without} " not in line)
    parts = ", \n\t".join((kept.rstrip(", \n"), *added))
    for statement in (
        "PRAGMA legacy_alter_table = ON",  # else views would follow the old table
        f"ALTER TABLE {table} RENAME TO old_{table}",
        f"{parts}\n){options}",
        f"INSERT INTO {table} SELECT * FROM old_{table}",
        f"DELETE FROM sqlite_sequence WHERE name = '{table}'",
        f"UPDATE sqlite_sequence SET name = '{table}' WHERE name = 'old_{table}'",
        f"DROP TABLE old_{table}",
        *indexes,
        "PRAGMA legacy_alter_table = OFF",
    ):
        _ask(statement)
