"""What clients and workers need from a broker. Nobody waits for it: what it loses costs time, never a call."""

from collections.abc import Callable
from typing import Protocol

from forge_tools.broker.message import Message

CHANNEL_PREFIX = "forge:notifications:"

REPLY_MARK = b"\0"
"""Separates the id of an execution from its encrypted result. A notification without it is ids separated by spaces."""

CLOSE_SECONDS = 5.0
"""How long a closing broker may still send what is under way."""
PAUSE_SECONDS = 1.0
"""How long nothing is sent after a failure."""

Hear = Callable[[bytes], None]
"""Receives what arrives on a channel, to which anybody may write."""


class Broker(Protocol):
    """One persistent connection of an event loop. No method blocks the loop, and after `close` none does anything."""

    @property
    def is_down(self) -> bool:
        """Whether the last send failed."""
        ...

    @property
    def is_listening(self) -> bool:
        """Whether messages to the channel currently arrive here."""
        ...

    def publish(self, message: Message) -> None:
        """Put a message into its queue. While the broker is away, messages are dropped: workers find calls in SQL."""
        ...

    def notify(self, channel: str, notification: bytes) -> None:
        """Notify the listeners of that channel, which is the id of a client or of a worker instance."""
        ...

    def listen(self, channel: str, hear: Hear, missed: Callable[[], None] = lambda: None) -> None:
        """Receive what is sent to that channel, even after outages; `missed` is called when something may be lost."""
        ...

    async def close(self) -> None:
        """Send what is under way, within a bounded time."""
        ...
