"""Checks that a PostgreSQL server takes as many connections as the workers may need, or that a pooler is set up."""

from forge_tools.cli.doctor.finding import Finding, note, ok, problem
from forge_tools.config import Settings
from forge_tools.storage.connections import IDLE_WORKER, MOST_OF_ONE, Connections, role_setting

RAISE = "Raise max_connections, or put a pooler between: FORGE_DATABASE_POOLER=transaction (docs/database.md)."


def check_connections(found: Connections, workers: int, settings: Settings) -> Finding:
    """Compare the need of so many workers with what there is; a pooler has its own limits, but none of a statement."""
    if settings.database_pooler != "none":
        return _pooled(found, settings)
    others = found.open - found.ours
    idle, busy = others + workers * IDLE_WORKER, others + workers * MOST_OF_ONE
    said = (
        f"{found.open} of {found.most} are open, {found.ours} of them forge-tools'; with {others} of others and {workers} "
        f"worker{'' if workers == 1 else 's'} it takes {idle}, and up to {busy} under load"
    )
    if idle > found.most:
        return problem("connections", said, RAISE)
    return note("connections", said, RAISE) if busy > found.most else ok("connections", said)


def _pooled(found: Connections, settings: Settings) -> Finding:
    if found.is_limited:
        return ok(
            "connections", f"through a transaction pooler; a statement ends after {found.statement_ms / 1000:g} s"
        )
    limit = f"ends after {found.statement_ms / 1000:g} s" if found.statement_ms else "never ends"
    way_out = f"{role_setting(settings.database)}; then have the pooler RECONNECT."
    return problem("connections", f"through a transaction pooler, where a statement that hangs {limit}", way_out)
