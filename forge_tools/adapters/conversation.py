"""The loop model -> tool calls -> results -> model, and what the models behind every SDK share."""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError

from forge_tools.adapters.toolset import Answer, Shown, ToolCall, Toolset
from forge_tools.errors import first_problem
from forge_tools.model.tools import Schema, ToolSpec

Message = dict[str, Any]
Hook = Callable[[Any], Any]
"""Called with the object it is for; awaited if it returns an awaitable. An exception in it ends the run."""

Stop = Literal["answered", "step_limit", "cut_off", "refused", "failed"]
"""Why a run ended: answered, at `max_steps`, at the token limit, declined by the model, or failed at its provider."""

PAUSED: Literal["paused"] = "paused"
"""A reply that the provider wants to continue: it is sent back unchanged."""

UNREADABLE = "INVALID_JSON"
"""The key for arguments that are not a JSON object when they go back to the model: providers refuse them in a history."""

_SET_BY_THE_ADAPTER = frozenset({"messages", "input", "contents", "stream"})
_EXCERPT = 500
"""How many characters are shown of each end of a long text from the model."""

CUT_OFF = "The reply was cut off at the token limit: raise the limit, or ask for less at once."
CALL_CUT_OFF = "This call was cut off at the token limit and did not run. Send it again with shorter arguments."
"""The last call of a truncated reply never runs: its shortened arguments may look complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens used at the provider. `input_tokens` includes cached ones."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply of a model: `messages` go into the history, `raw` is the SDK's object."""

    text: str
    messages: list[Message]
    calls: list[ToolCall] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    stop: Stop | Literal["paused"] = "answered"
    problem: str | None = None
    raw: Any = None

    @classmethod
    def failure(cls, problem: str, usage: Usage, raw: Any = None) -> "Reply":
        """Build a reply that did not arrive, or not completely: nothing of it is kept and none of its calls runs."""
        return cls(text="", messages=[], usage=usage, stop="failed", problem=problem, raw=raw)

    @classmethod
    def broken_off(cls, usage: Usage, raw: Any = None) -> "Reply":
        """Build the reply of a stream that ended too early."""
        return cls.failure("The stream ended before the reply was complete.", usage, raw)

    def cut_off(self, *, in_call: bool = True) -> "Reply":
        """Mark this reply as cut off at the token limit; with `in_call`, its last call was cut and does not run."""
        calls = list(self.calls)
        if calls and in_call:
            calls[-1] = replace(calls[-1], problem=CALL_CUT_OFF)
        return replace(self, calls=calls, stop="cut_off", problem=CUT_OFF)

    def refused(self, problem: str) -> "Reply":
        """Mark this reply as declined by its model or provider."""
        return replace(self, stop="refused", problem=problem)


class Model(ABC):
    """A model behind its provider's SDK: how to query it, its messages, and the caller's additions to each request."""

    _instructions: str | None = None

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
        for name in _SET_BY_THE_ADAPTER & request.keys():
            raise TypeError(
                f"`{name}` is set by the adapter. Pass messages to the Conversation; to stream, pass on_event."
            )
        self._sees: bool = request.pop("vision", True)
        self._own_tools: list[Schema] = list(request.pop("tools", ()))
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
        return {"role": "user", "content": text}

    def _instructed(self, messages: Sequence[Message]) -> list[Message]:
        system = {"role": "system", "content": self._instructions}
        return [*messages] if self._instructions is None else [system, *messages]

    def shown(self, answer: Answer) -> list[Shown]:
        return answer.media if self._sees else []

    def offered(self, tools: Sequence[Schema]) -> dict[str, Any]:
        """Return the `tools` of a request with those that the provider runs itself, such as web search."""
        offered = [*tools, *self._own_tools]
        return {"tools": offered} if offered else {}  # an empty list is refused

    async def exchange(
        self, create: Callable[..., Awaitable[Any]], request: dict[str, Any], on_event: Hook | None
    ) -> Reply:
        """Send one request; with `on_event`, stream and pass on each event."""
        if on_event is None:
            return self.read(await create(**request))
        stream = await create(**request, stream=True)
        try:
            return await self.assemble(_passed_on(stream, on_event))
        finally:
            # Some SDKs give an asynchronous generator, others an object of their own.
            await (stream.aclose() if hasattr(stream, "aclose") else stream.close())

    @abstractmethod
    def tools(self, specs: Sequence[ToolSpec], /) -> list[Schema]:
        """Return the tools in the format of its requests."""

    @abstractmethod
    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        """Send one request; with `on_event`, stream and pass on each event of the SDK as it comes."""

    @abstractmethod
    def results(self, answers: Sequence[Answer], /) -> list[Message]:
        """Return the messages that answer the calls of one reply."""

    @abstractmethod
    def read(self, reply: Any, /) -> Reply:
        """Parse a reply of the SDK."""

    @abstractmethod
    async def assemble(self, stream: AsyncIterable[Any], /) -> Reply:
        """Assemble the events of a stream."""

    def asked_again(self, why: str, usage: Usage, raw: Any) -> Reply:
        """Tell the model that its provider could not parse a call. The message replaces the call in the history."""
        problem = f"Your tool call did not run, because {both_ends(why)}. Send it again, with its arguments as one JSON object."
        return Reply(text="", messages=[self.prompt(problem)], usage=usage, stop=PAUSED, problem=problem, raw=raw)

    @staticmethod
    @abstractmethod
    def _clients() -> tuple[Any, Callable[[], Any]]:
        """Return the SDK's synchronous client, which would block the loop of the tools, and its asynchronous one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One reply, and the answers to its calls."""

    number: int
    reply: Reply
    answers: list[Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How a run ended. `problem` is a sentence unless it ended with an answer."""

    text: str
    stop: Stop
    steps: list[Step]
    usage: Usage
    problem: str | None = None

    @property
    def is_answered(self) -> bool:
        return self.stop == "answered"


class Conversation:
    """A model at work with tools. `messages` is its history, JSON only, and always acceptable to the provider.

    conversation = Conversation(ChatCompletions("gpt-5.5"), Toolset(executor))
    turn = await conversation.run("Which files mention Celery?")

    A reply enters the history together with the answers to its calls, so another `run` can continue after one that was
    cancelled, or that the provider ended. `on_step` gets each Step, `on_event` each event of the SDK's stream.
    """

    def __init__(
        self,
        model: Model,
        tools: Toolset,
        *,
        messages: Iterable[Message] = (),
        on_step: Hook | None = None,
        on_event: Hook | None = None,
    ) -> None:
        self.messages = list(messages)
        self.usage = Usage()
        self._model = model
        self._tools = tools
        self._on_step = on_step
        self._on_event = on_event
        self._is_running = False

    async def run(self, prompt: str | Message | None = None, *, max_steps: int = 20) -> Turn:
        """Query the model, run its calls and return their results to it, until it answers or after `max_steps` requests.

        Raises:
            ConfigurationError: when the executor is not connected. What the SDK raises, such as its errors of
                connection, propagates too; everything done so far is in `messages`.
            RuntimeError: when another run of this conversation is not over.
            ValueError: for `max_steps` under 1.
        """
        if max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}; give at least 1, the number of requests that a run may take.")
        if self._is_running:
            raise RuntimeError("This conversation is already running: await that run, or start another Conversation.")
        self._is_running = True
        try:
            schemas = self._model.tools(self._tools.specs())
            if prompt is not None:
                self._remember([self._model.prompt(prompt) if isinstance(prompt, str) else prompt])
            return await self._run(schemas, max_steps)
        finally:
            self._is_running = False

    async def _run(self, schemas: list[Schema], max_steps: int) -> Turn:
        steps: list[Step] = []
        for number in range(1, max_steps + 1):
            reply = await self._model.ask(self.messages, schemas, self._on_event)
            self.usage += reply.usage
            answers = await self._tools.answer(reply.calls)
            steps.append(Step(number, reply, answers))
            self._remember(reply.messages + (self._model.results(answers) if answers else []))
            if self._on_step is not None:
                await _told(self._on_step, steps[-1])
            if not reply.calls and reply.stop != PAUSED:
                return _turn(steps, reply.stop, reply.problem)
        problem = (
            f"Stopped after {max_steps} steps (max_steps) while the model still called tools. "
            "The history has all of it: call run() to continue, or raise max_steps."
        )
        return _turn(steps, "step_limit", problem)

    def _remember(self, messages: list[Message]) -> None:
        self.messages += map(_encodable, messages)


async def _told(hook: Hook, what: Any) -> None:
    if inspect.isawaitable(waiting := hook(what)):
        await waiting


async def _passed_on(stream: AsyncIterable[Any], hook: Hook) -> AsyncIterator[Any]:
    async for event in stream:
        await _told(hook, event)
        yield event


def _turn(steps: list[Step], stop: Stop, problem: str | None) -> Turn:
    usage = sum((step.reply.usage for step in steps), Usage())
    return Turn(text=steps[-1].reply.text, stop=stop, problem=problem, steps=steps, usage=usage)


def _encodable(message: Message) -> Message:
    """Replace lone surrogates, which models emit and SDKs cannot send back."""
    sendable: Message = json.loads(json.dumps(message, ensure_ascii=False).encode(errors="replace"))
    return sendable


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Name the extra to install if the import of an SDK fails."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f'{what} is not installed. Run pip install "forge-tools[{name}]".') from error


def unreadable(error: ValidationError, whose: str) -> str:
    return (
        f"The server's reply is not one of {whose}'s: {first_problem(error)}. "
        "Servers that only imitate it usually support OpenAI's API too: use ChatCompletions with them."
    )


def both_ends(text: str) -> str:
    return text if len(text) <= 2 * _EXCERPT else f"{text[:_EXCERPT]} ... {text[-_EXCERPT:]}"


def sendable(arguments: Any) -> dict[str, Any]:
    """Make the arguments from a model acceptable to a request: an object without NaN and infinities."""
    given = {} if arguments is None else arguments
    try:
        if isinstance(given, str):
            given = json.loads(given) if given.strip() else {}
        if isinstance(given, Mapping):
            json.dumps(given, allow_nan=False)
            return dict(given)
    except (ValueError, RecursionError):
        arguments = arguments if isinstance(arguments, str) else json.dumps(given)
    return {UNREADABLE: arguments}


def sendable_text(arguments: Any) -> str:
    """Return arguments as text that a request accepts; acceptable ones stay as they are."""
    sent = sendable(arguments)
    is_fine = isinstance(arguments, str) and arguments.strip() and UNREADABLE not in sent
    return arguments if is_fine else json.dumps(sent)
