"""What adapters share about their SDKs: the import, the client, and the caller's additions to each request."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from forge_tools.adapters.conversation import PAUSED, Hook, Message, Reply, Usage
from forge_tools.adapters.toolset import Answer, Shown
from forge_tools.model import Schema

_SET_BY_THE_ADAPTER = ("messages", "input", "contents", "stream")

_EXCERPT = 500
"""How many characters are shown of each end of a long text from the model."""


class SdkModel(ABC):
    """A model behind an SDK: its client, and the caller's additions to each request."""

    def __init__(self, client: Any, request: dict[str, Any]) -> None:
        """Take the caller's client, if any, and what goes into each request.

        A model without `vision` gets one line of text for each image, sound or document, never its bytes.

        Raises:
            TypeError: for a client that is not asynchronous, or a keyword that is set here.
        """
        if client is not None:
            synchronous, asynchronous = self._clients()
            if isinstance(client, synchronous):
                raise TypeError(
                    f"This is a synchronous client. Pass an {asynchronous.__name__}; "
                    "in a script, run it with asyncio.run()."
                )
        self._client = client
        self._sees: bool = request.pop("vision", True)
        self._own_tools = _own_tools(request)
        self._request = request

    @property
    def client(self) -> Any:
        """The SDK's client, created on first use.

        Raises:
            ImportError: without the SDK.
        """
        if self._client is None:
            self._client = self._clients()[1]()
        return self._client

    def prompt(self, text: str) -> Message:
        """Return a user's text as a message."""
        return {"role": "user", "content": text}

    def shown(self, answer: Answer) -> list[Shown]:
        """Return what the model receives of an answer besides its text."""
        return answer.media if self._sees else []

    def offered(self, tools: Sequence[Schema]) -> dict[str, Any]:
        """Return the `tools` of a request with those that the provider runs itself; without the key if there are none."""
        offered = [*tools, *self._own_tools]
        return {"tools": offered} if offered else {}  # an empty list is refused

    async def exchange(
        self, create: Callable[..., Awaitable[Any]], request: dict[str, Any], on_event: Hook | None
    ) -> Reply:
        """Send one request; with `on_event`, stream and pass on each event."""
        if on_event is None:
            return self.read(await create(**request))
        async with await create(**request, stream=True) as stream:
            return await self.assemble(stream, on_event)

    @abstractmethod
    def read(self, reply: Any, /) -> Reply:
        """Parse a reply of the SDK."""

    @abstractmethod
    async def assemble(self, stream: AsyncIterable[Any], on_event: Hook | None = None) -> Reply:
        """Assemble the events of a stream."""

    def asked_again(self, why: str, usage: Usage, raw: Any) -> Reply:
        """Tell the model that its provider could not parse a call. The message replaces the call in the history."""
        problem = f"Your tool call did not run, because {both_ends(why)}. Send it again, with its arguments as one JSON object."
        return Reply(text="", messages=[self.prompt(problem)], usage=usage, stop=PAUSED, problem=problem, raw=raw)

    @staticmethod
    @abstractmethod
    def _clients() -> tuple[Any, Callable[[], Any]]:
        """Return the SDK's synchronous client, which would block the loop of the tools, and its asynchronous one."""


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Name the extra to install if the import of an SDK fails."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f'{what} is not installed. Run pip install "forge-tools[{name}]".') from error


def with_instructions(instructions: str | None, messages: Sequence[Message]) -> list[Message]:
    """Return the messages, after the system prompt if there is one."""
    return [*([] if instructions is None else [{"role": "system", "content": instructions}]), *messages]


def unreadable(error: ValidationError, whose: str) -> str:
    """Describe a reply that an SDK cannot parse."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return (
        f"The server's reply is not one of {whose}'s: {where}: {first['msg']}. "
        "Servers that only imitate it usually support OpenAI's API too: use ChatCompletions with them."
    )


def both_ends(text: str) -> str:
    """Shorten a text that may be long."""
    return text if len(text) <= 2 * _EXCERPT else f"{text[:_EXCERPT]} ... {text[-_EXCERPT:]}"


def _own_tools(request: dict[str, Any]) -> list[Schema]:
    """Remove from `request` the tools that the provider runs itself, such as web search; they are offered beside ours."""
    for name in _SET_BY_THE_ADAPTER:
        if name in request:
            raise TypeError(
                f"`{name}` is set by the adapter. Pass messages to the Conversation; to stream, pass on_event."
            )
    return list(request.pop("tools", ()))
