"""Notifies whoever a cancel concerns: the worker that runs the execution, else the client that waits for it."""

from forge_tools.bell import Ringer
from forge_tools.storage import Store


async def tell_of_cancel(store: Store, broker_url: str, execution_id: str) -> None:
    """Say which execution it is, no more. Without a broker a worker hears with its next heartbeat, a client when it polls."""
    ringer = Ringer(broker_url)
    try:
        await ringer.ring({listener: [id_] for listener, id_ in await store.queue.listeners([execution_id])})
    finally:
        await ringer.close()
