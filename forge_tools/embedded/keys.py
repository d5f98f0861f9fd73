"""Gives a stack a key that secrets are encrypted with, unless there is one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from forge_tools.config import Settings
from forge_tools.secrets import KeyFolder, key_id
from forge_tools.storage import open_store


def ensure_key(settings: Settings) -> None:
    """Make and publish a key where clients have none to encrypt with, or this stack's workers do not hold it."""
    with ThreadPoolExecutor(1) as thread:  # whoever starts a stack may have a loop that runs
        thread.submit(lambda: asyncio.run(_ensure_key(settings))).result()


async def _ensure_key(settings: Settings) -> None:
    folder = KeyFolder(settings.keys_folder)
    async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
        current = (await store.directories.read()).encryption_key
        if current is not None and (not settings.is_embedded or current.id in folder.ids()):
            return
        public = folder.new()
        await store.encryption_keys.publish(key_id(public), public)
