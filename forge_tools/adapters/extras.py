"""What a caller adds to each request of a provider."""

from typing import Any

from forge_tools.records import Schema

_SET_BY_THE_ADAPTER = ("messages", "input", "stream")


def own_tools(request: dict[str, Any]) -> list[Schema]:
    """Take out of `request` the tools that the provider runs itself, such as web search; they are offered beside ours.

    Raises:
        TypeError: for what the adapter sets.
    """
    for name in _SET_BY_THE_ADAPTER:
        if name in request:
            raise TypeError(
                f"`{name}` is set by the adapter. Give messages to the Conversation; to stream, give it on_event."
            )
    return list(request.pop("tools", ()))
