"""`forge-tools db`: migrations."""

from typing import Annotated

import typer
from typer import Argument, Option

from forge_tools.cli.face import App, Face, can_ask
from forge_tools.config import Settings
from forge_tools.storage import migrate
from forge_tools.storage.connection.faults import is_usable
from forge_tools.storage.connection.pool import role_setting

app = App(no_args_is_help=True, help="Migrate the database that FORGE_DATABASE_URL names, or the embedded one.")


@app.command()
def upgrade(
    face: Face, revision: Annotated[str, Argument(help="The target version, by default the newest.")] = "head"
) -> None:
    """Create the tables, or migrate them to this version."""
    settings = Settings.load()
    database = settings.migration_database
    before = migrate.current(database)
    migrate.upgrade(database, revision)
    _report(face, before, migrate.current(database))
    if settings.database_pooler != "none" and settings.database_url:
        said = "The pooler does not pass settings on, so its role needs them. Run this once, as an owner"
        face.note(f"{said}: {role_setting(settings.database)};", style="")


@app.command()
def downgrade(
    face: Face,
    revision: Annotated[str, Argument(help="The target version; base removes every table.")],
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Migrate the database back to an older version. What newer tables hold is lost."""
    if not yes:
        if not can_ask():
            raise typer.BadParameter("it removes data; confirm with --yes.", param_hint="downgrade")
        typer.confirm(f"Go back to {revision} and lose what newer tables hold?", abort=True, err=True)
    database = Settings.load().migration_database
    before = migrate.current(database)
    migrate.downgrade(database, revision)
    _report(face, before, migrate.current(database))


@app.command()
def current(face: Face) -> None:
    """Print the version of the database and that of this code."""
    at, needed = migrate.current(Settings.load().migration_database), migrate.head()
    document = {"current": at, "head": needed, "is_current": at == needed}
    if at == needed:
        said = f"{at} (newest)"
    elif at and is_usable(at):
        said = f"{at}; this code is at {needed}, and works with it."
    else:
        said = f"{at or 'not migrated'}; this code needs {needed}. Run: forge-tools db upgrade"
    face.tell(document, said)


def _report(face: Face, before: str | None, after: str | None) -> None:
    moved = f"Migrated from {before or 'nothing'} to {after or 'nothing'}."
    same = f"Nothing to do: {after or 'not migrated'}."
    face.tell({"before": before, "after": after}, same if before == after else moved)
