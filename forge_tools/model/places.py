"""Where calls wait: queues by name, those of one host among them, and how to get them served."""

HOST_PREFIX = "host."


def host_queue(hostname: str) -> str:
    """The queue of one host: each worker there serves it beside its own queues, and nobody else does."""
    return f"{HOST_PREFIX}{hostname}"


def serving_command(queue: str, lane: str) -> str:
    """What to type to get `queue` served in that lane, and where, if that matters."""
    if queue.startswith(HOST_PREFIX):
        return f"on host {queue.removeprefix(HOST_PREFIX)}: forge-tools worker --lane {lane}"
    return f"forge-tools worker --lane {lane} --queues {queue}"
