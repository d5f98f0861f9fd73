"""What clients and workers ask of a broker. Nobody waits for it: what it loses costs time, never a call."""

from collections.abc import Callable
from typing import Protocol

from forge_tools.broker.message import Message

CHANNEL_PREFIX = "forge:notifications:"

REPLY_MARK = b"\0"
"""Between the id of an execution and its encrypted result. Without it a notification is ids, apart by spaces."""

CLOSE_SECONDS = 5.0
"""For which a broker that is closed may send what is on its way."""
PAUSE_SECONDS = 1.0
"""For which nothing is sent after a failure."""

Hear = Callable[[bytes], None]
"""Told what comes by a channel: anybody may write there."""


class Broker(Protocol):
    """One kept connection of an event loop. No method blocks it, and after the close all of them do nothing."""

    @property
    def is_down(self) -> bool:
        """Whether the last that was sent did not arrive."""
        ...

    @property
    def is_listening(self) -> bool:
        """Whether what is sent to the channel arrives here at this moment."""
        ...

    def publish(self, message: Message) -> None:
        """Put a message into its queue. While the broker is away messages are dropped: workers find calls in SQL."""
        ...

    def notify(self, channel: str, notification: bytes) -> None:
        """Send to whoever listens to that channel: the id of a client, or of a worker instance."""
        ...

    def listen(self, channel: str, hear: Hear, missed: Callable[[], None] = lambda: None) -> None:
        """Hear from now on what is sent to that channel, also after outages; `missed`: something may have been lost."""
        ...

    async def close(self) -> None:
        """Send what is on its way, within a bounded time."""
        ...
