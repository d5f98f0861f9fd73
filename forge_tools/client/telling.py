"""Tells the client that waits for an execution that somebody else has ended it."""

from forge_tools.bell import Ringer
from forge_tools.storage import Store


async def tell_submitter(store: Store, broker_url: str, execution_id: str) -> None:
    """Ring whoever submitted it. A broker that is away costs that client the wait until it polls, and nothing else."""
    ringer = Ringer(broker_url)
    try:
        await ringer.ring({submitter: [id_] for submitter, id_ in await store.queue.submitters([execution_id])})
    finally:
        await ringer.close()
