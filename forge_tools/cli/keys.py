"""`forge-tools keys`: the keys that encrypt secrets."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from typer import Argument, Option

from forge_tools.cli.face import App, Face
from forge_tools.cli.services import with_store
from forge_tools.cli.text import Column, number, table
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.model.secret_names import EncryptionKey
from forge_tools.secrets.encryption import KeyFolder, key_id
from forge_tools.storage import Store

PATIENCE_SECONDS = 3600.0
"""How long after its retirement a client unaware of it may still use a key."""

KeyArgument = Annotated[str, Argument(help="The key's id, as `forge-tools keys list` shows it.")]

app = App(
    no_args_is_help=True,
    help="Make, list and retire the keys that encrypt secrets. Private halves are files in FORGE_ENCRYPTION_KEYS.",
)


@app.command()
def new(
    face: Face, if_none: Annotated[bool, Option("--if-none", help="Do nothing if clients have a key already.")] = False
) -> None:
    """Make a key for clients to encrypt with. Its private half stays in this machine's folder."""
    settings = Settings.load()

    async def work(store: Store) -> str | None:
        has_one = if_none and (await store.directories.read()).encryption_key is not None
        return None if has_one else await _make(store, settings)

    made = with_store(work, settings)
    said = "There is a key already." if made is None else f"Made key {made} in {settings.keys_folder}."
    face.tell({"made": made, "folder": str(settings.keys_folder)}, said)


@app.command()
def rotate(face: Face) -> None:
    """Make a key and retire all others. Calls under way are still decrypted with theirs."""
    settings = Settings.load()

    async def work(store: Store) -> tuple[str, list[str]]:
        old = [key.id for key in await store.encryption_keys.list() if key.retired_at is None]
        made = await _make(store, settings)  # first: without any key, calls with secrets are refused
        await store.encryption_keys.retire(old)
        return made, old

    made, old = with_store(work, settings)
    facts = {"made": made, "retired": old, "folder": str(settings.keys_folder)}
    face.tell(facts, f"Made key {made} in {settings.keys_folder}; retired {', '.join(old) or 'none'}.")


@app.command("list")
def list_keys(face: Face) -> None:
    """List the keys. Shows how many unfinished calls need each, and whether this machine can decrypt with it."""
    settings = Settings.load()
    keys, held = with_store(lambda store: store.encryption_keys.list(), settings), KeyFolder(settings.keys_folder).ids()
    if face.is_json:
        names = ("id", "created_at", "retired_at", "live")
        face.document([{name: getattr(key, name) for name in names} | {"held_here": key.id in held} for key in keys])
    elif not keys:
        face.say("There is no key. Make one where the workers read it: forge-tools keys new", style="dim")
    else:
        face.out.print(table(_columns(held), keys, face.out.width))
        calls = "calls: how many unfinished calls are encrypted with it."
        face.say(f"{calls} here: whether its private half is in {settings.keys_folder}.", style="dim")


@app.command()
def retire(face: Face, id: KeyArgument) -> None:
    """Stop clients from using a key. Workers still decrypt what was encrypted with it."""

    async def work(store: Store) -> None:
        await _find(store, id)
        await store.encryption_keys.retire([id])

    with_store(work)
    face.tell({"retired": id}, f"Key {id} is retired; active clients stop using it within seconds.")


@app.command()
def forget(
    face: Face,
    id: KeyArgument,
    now: Annotated[bool, Option("--now", help="Even if it was retired less than an hour ago.")] = False,
) -> None:
    """Delete a retired key and its private half on this machine. No unfinished call may need it."""
    settings = Settings.load()

    async def work(store: Store) -> None:
        key = await _find(store, id)
        lasted = (datetime.now(UTC) - key.retired_at).total_seconds() if key.retired_at else PATIENCE_SECONDS
        if lasted < PATIENCE_SECONDS and not now:
            raise ConfigurationError(
                f"Key {id} was retired {lasted:.0f} s ago, and clients that have been idle since may still encrypt with it. "
                f"Wait until {PATIENCE_SECONDS:.0f} s have passed, or pass --now."
            )
        await store.encryption_keys.forget(id)

    with_store(work, settings)  # first: it refuses while a call needs the key
    KeyFolder(settings.keys_folder).forget(id)
    face.tell({"forgotten": id}, f"Key {id} is deleted. Delete its file on all other hosts of workers too.")


async def _make(store: Store, settings: Settings) -> str:
    public = KeyFolder(settings.keys_folder).new()
    await store.encryption_keys.publish(key_id(public), public)
    return key_id(public)


async def _find(store: Store, id: str) -> EncryptionKey:
    keys = {key.id: key for key in await store.encryption_keys.list()}
    if id not in keys:
        raise ConfigurationError(f"There is no key {id[:40]!r}. There are: {', '.join(keys) or 'none'}.")
    return keys[id]


def _columns(held: Sequence[str]) -> list[Column]:
    return [
        Column("key", lambda key: key.id),
        Column("made (UTC)", lambda key: f"{key.created_at:%Y-%m-%d %H:%M}"),
        Column("retired", lambda key: "in use" if key.retired_at is None else f"{key.retired_at:%Y-%m-%d %H:%M}"),
        number("calls", lambda key: f"{key.live:,}"),
        Column("here", lambda key: "yes" if key.id in held else "no"),
    ]
