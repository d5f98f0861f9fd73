"""The loop model -> tool calls -> results -> model, for any SDK."""

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from forge_tools.adapters.toolset import Answer, ToolCall, Toolset
from forge_tools.model import Schema, ToolSpec

Message = dict[str, Any]
Hook = Callable[[Any], Any]
"""Called with the object it is for; awaited if it returns an awaitable. An exception in it ends the run."""

Stop = Literal["answered", "step_limit", "cut_off", "refused", "failed"]
"""Why a run ended: answered, at `max_steps`, at the token limit, declined by the model, or failed at its provider."""

PAUSED: Literal["paused"] = "paused"
"""A reply that the provider wants to continue: it is sent back unchanged."""

BROKEN_OFF = "The stream ended before the reply was complete."
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

    def cut_off(self, *, in_call: bool = True) -> "Reply":
        """Mark this reply as cut off at the token limit; with `in_call`, its last call was cut and does not run."""
        calls = list(self.calls)
        if calls and in_call:
            calls[-1] = replace(calls[-1], problem=CALL_CUT_OFF)
        return replace(self, calls=calls, stop="cut_off", problem=CUT_OFF)

    def refused(self, problem: str) -> "Reply":
        """Mark this reply as declined by its model or provider."""
        return replace(self, stop="refused", problem=problem)


class Model(Protocol):
    """A model behind its provider's SDK: how to query it, and the format of its messages."""

    def tools(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        """Return the tools in the format of its requests."""
        ...

    async def ask(self, messages: Sequence[Message], tools: Sequence[Schema], on_event: Hook | None = None) -> Reply:
        """Send one request; with `on_event`, stream and pass on each event of the SDK as it comes."""
        ...

    def prompt(self, text: str) -> Message:
        """Return a user's text as a message."""
        ...

    def results(self, answers: Sequence[Answer]) -> list[Message]:
        """Return the messages that answer the calls of one reply."""
        ...


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
        """
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
            await told(self._on_step, steps[-1])
            if not reply.calls and reply.stop != PAUSED:
                return _turn(steps, reply.stop, reply.problem)
        problem = (
            f"Stopped after {max_steps} steps (max_steps) while the model still called tools. "
            "The history has all of it: call run() to continue, or raise max_steps."
        )
        return _turn(steps, "step_limit", problem)

    def _remember(self, messages: list[Message]) -> None:
        self.messages += map(_encodable, messages)


async def told(hook: Hook | None, what: Any) -> None:
    """Call a hook, which may be None or a coroutine function."""
    if hook is not None and inspect.isawaitable(waiting := hook(what)):
        await waiting


def _turn(steps: list[Step], stop: Stop, problem: str | None) -> Turn:
    usage = sum((step.reply.usage for step in steps), Usage())
    return Turn(text=steps[-1].reply.text if steps else "", stop=stop, problem=problem, steps=steps, usage=usage)


def _encodable(message: Message) -> Message:
    """Replace lone surrogates, which models emit and SDKs cannot send back."""
    text = json.dumps(message, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        cleaned: Message = json.loads(text.encode(errors="replace"))
        return cleaned
    return message
