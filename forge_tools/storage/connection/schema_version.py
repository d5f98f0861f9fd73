"""Which versions of the tables this code works on."""

from forge_tools.errors import SchemaVersionError

SCHEMA_REVISION = "0001"
"""The newest migration: a number, and where older code can work on what it makes, the oldest that can: `0003_from_0002`."""

UPGRADE = "Run `forge-tools db upgrade`."


def is_usable(revision: str) -> bool:
    """Whether tables at `revision` are this code's, or newer ones that say it can work on them. Numbers compare as text."""
    ours, _ = _window(SCHEMA_REVISION)
    number, oldest = _window(revision)
    return oldest <= ours <= number


def require_usable(shown: str, revision: str | None) -> None:
    """Refuse a database that this code cannot work on; `shown` is its place as people may see it.

    Raises:
        SchemaVersionError: with the way out.
    """
    if revision is None or _window(revision)[0] < _window(SCHEMA_REVISION)[0]:
        said = f"is at version {revision or 'none'}; this code needs {SCHEMA_REVISION}. {UPGRADE}"
        raise SchemaVersionError(f"{shown} {said}")
    if not is_usable(revision):
        raise unknown_version(shown, revision)


def unknown_version(shown: str, revision: str) -> SchemaVersionError:
    """The refusal of a database whose tables are neither this code's nor those of one before it."""
    return SchemaVersionError(
        f"{shown} is at version {revision}, which this code does not know; its newest is {SCHEMA_REVISION}. "
        "Install a newer forge-tools here; or, if one that was never released wrote it, export its calls with that one "
        "(`forge-tools export`) and start on a new database (FORGE_DATABASE_URL)."
    )


def _window(revision: str) -> tuple[str, str]:
    """The number of a revision, and that of the oldest code that can work on what it makes."""
    number, _, oldest = revision.partition("_from_")
    return number, oldest or number
