"""What the built-in tools share: parameters as fields of a record, work on a thread within the call's time, and pages."""

import asyncio
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from forge_tools.errors import ErrorCode, InvalidCallError, SandboxError
from forge_tools.model import Capabilities, ExecutionContext, Lane, ToolParameter, ToolResult
from forge_tools.sandbox.paths.refusals import MAX_PATH_CHARS
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.tool.base import BaseTool

Answer = TypeVar("Answer")

PATH: dict[str, int] = {"min_length": 1, "max_length": MAX_PATH_CHARS}
"""What every path that a caller passes is held to."""

GLOBS: dict[str, Any] = {"items": {"type": "string", "minLength": 1, "maxLength": 1024}}
_TYPES = {str: "string", int: "integer", bool: "boolean", Sequence: "array", Mapping: "object"}
_PATHS = ("file_path", "notebook_path", "file", "path")
"""What parameters are called that name what a tool works on, the closest first."""

_NOTE_ROOM = 320
_MAX_WARNING = 100
_MAX_WARNINGS = 20


def option(description: str, default: Any = MISSING, **declared: Any) -> Any:
    """A field that is a parameter: its name, type and default are the field's, the rest as a ToolParameter takes it."""
    return field(default=default, metadata={"description": description, **declared})


def parameters_of(options: type) -> tuple[ToolParameter, ...]:
    """The parameters that the fields of a dataclass declare."""
    kinds = get_type_hints(options)
    return tuple(_parameter(one, kinds[one.name]) for one in fields(options) if one.metadata)


def _parameter(one: Field[Any], kind: Any) -> ToolParameter:
    if get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    is_choice, is_required = get_origin(kind) is Literal, one.default is MISSING
    return ToolParameter(
        name=one.name,
        type="string" if is_choice else _TYPES[get_origin(kind) or kind],
        required=is_required,
        default=None if is_required else one.default,
        enum=list(get_args(kind)) if is_choice else None,
        **one.metadata,
    )


class BuiltinTool(BaseTool):
    """A tool that only awaits, or blocks on threads of its own. Its parameters are the fields of its `options`."""

    lane: Lane = "async"
    parameters: Sequence[ToolParameter] = ()
    options: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(declared := cls.__dict__.get("options"), type):
            cls.parameters = parameters_of(declared)

    def _takes_extra(self) -> bool:
        return False  # `**options` only keeps the names from being written twice

    def _presentable(self, failure: ToolResult, parameters: Mapping[str, Any]) -> ToolResult:
        """Name the path that was asked for, where there was one (spec S1-49)."""
        asked, details = self.effective(parameters), failure.error_details
        path = next((asked[name] for name in _PATHS if asked.get(name) is not None), None)
        if path is not None and (details is None or isinstance(details, dict)):
            failure = failure.model_copy(update={"error_details": {**(details or {}), "path": path}})
        return super()._presentable(failure, parameters)


class ReadingTool(BuiltinTool):
    """A tool that changes nothing, so that a dry run is a run."""

    capabilities = Capabilities(idempotent=True, retryable=True)

    async def _dry_run(self, context: ExecutionContext, *args: Any, **options: Any) -> ToolResult:
        result = await self._execute(context, *args, **options)
        if result.success:
            said = result.output
            result.output = ["[Dry Run]", *said] if isinstance(said, list) else f"[Dry Run] {said}"
        return result


class LookingTool(ReadingTool):
    """A tool that answers from the files of the workspace, on a thread."""

    async def _execute(self, context: ExecutionContext, **options: Any) -> ToolResult:
        asked, workspace, deadline = self.options(**options), self.workspace(context), Deadline(context.timeout)
        return await deadline.look(lambda: self._answer(asked, workspace, deadline, context.max_output_size))

    @abstractmethod
    def _answer(self, wish: Any, workspace: Workspace, deadline: "Deadline", max_chars: int) -> ToolResult:
        """Answer with what there is when the deadline is over."""


class Deadline:
    """When a body should be done: 10 % of its timeout (at most 2 s) before the call ends, or once it is cancelled."""

    def __init__(self, timeout: float, is_cancelled: threading.Event | None = None) -> None:
        self.margin = min(2.0, timeout / 10)
        self._at = time.monotonic() + timeout - self.margin
        self._is_cancelled = is_cancelled or threading.Event()

    @property
    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._at - time.monotonic())

    @property
    def until_the_end(self) -> float:
        """Seconds until the call is ended from outside, never below zero."""
        return max(0.0, self._at + self.margin - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether it is time to answer with what there is."""
        return self._is_cancelled.is_set() or time.monotonic() >= self._at

    def within(self, timeout: float) -> "Deadline":
        """The deadline of a part of the work."""
        return Deadline(timeout, self._is_cancelled)

    def cancel(self) -> None:
        """Tell work on a thread that nobody waits for it any more."""
        self._is_cancelled.set()

    def check(self) -> None:
        """Stop the work between two steps of it if the time for the call is over, or the call was cancelled."""
        if self.is_over:
            raise SandboxError("The call did not finish within its timeout. Give it a longer one", ErrorCode.TIMEOUT)

    async def look(self, work: Callable[[], Answer]) -> Answer:
        """Do work that changes nothing on a thread; a cancelled call ends at once, and the thread soon after."""
        try:
            return await asyncio.to_thread(work)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Do work on a thread; a cancelled call ends when its thread has ended, so that nothing happens after it is over."""
        task = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.cancel()
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # asked for, or asyncio would log what nobody wants to know
            raise
        finally:
            del task  # or its error and this frame hold each other, and with them the workspace, until it is collected


class Page:
    """The records from `offset` on: at most `limit`, together at most `room` characters."""

    def __init__(self, *, offset: int, limit: int, room: int) -> None:
        self.records: list[str] = []
        self.seen = 0
        self.has_more = False
        self.offset = offset
        self._limit = limit
        self._room = room

    def add(self, record: str) -> bool:
        """Add the next record; False means that the page is full and another one follows."""
        if self.seen >= self.offset:
            if len(self.records) == self._limit or (self.records and self._room < len(record)):
                self.has_more = True
                return False
            # A first record that is too long is cut: a page without records would not lead to the next one.
            self.records.append(record[: max(self._room, 1)] if len(record) > self._room else record)
            self._room -= len(record) + 1
        self.seen += 1
        return True

    @property
    def needed(self) -> int:
        """The number of records sufficient to fill it and to know that more follow."""
        return self.offset + self._limit + 1

    def notes(
        self, unit: str, *, total: int | None, is_partial: bool, warnings: Sequence[str] = ()
    ) -> tuple[list[str], dict[str, Any]]:
        """Return the end of an answer, for people and for programs; `total` None: nobody knows how many records there are."""
        facts: dict[str, Any] = {"shown_records": len(self.records), "truncated": self.has_more}
        facts |= {} if total is None else {"total_records": total}
        notes = []
        if self.has_more:
            facts["next"] = {"offset": self.seen}
            known = "more" if total is None else counted(total, unit)
            first = self.seen - len(self.records) + 1
            notes.append(f"[{first:,}-{self.seen:,} of {known}; continue with offset={self.seen}]")
        elif self.seen and not self.records:
            are = "is" if self.seen == 1 else "are"
            notes.append(f"[nothing after offset {self.offset}: there {are} {counted(self.seen, unit)}]")
        if is_partial:
            facts["partial"] = True
            notes.append("[stopped early: the call's time ran out; narrow path or pattern for the rest]")
        if warnings:
            left, more = len(warnings) - _MAX_WARNINGS, len(warnings) - 1
            facts["warnings"] = [*warnings[:_MAX_WARNINGS], *([f"and {left:,} more"] if left > 0 else [])]
            facts["not_searched"] = len(warnings)
            notes.append(f"[not searched: {warnings[0][:_MAX_WARNING]}{f' and {more:,} more' if more else ''}]")
        return notes, facts


def check_text(name: str, text: str) -> None:
    """Refuse what no argument of a process and no name of a file can hold."""
    if "\0" in text:
        raise InvalidCallError(rf"{name} contains a NUL character; in a pattern write it as \x00")
    if text.encode(errors="replace").decode() != text:
        raise InvalidCallError(f"{name} contains half a surrogate pair, which is not a character")


def room_for_records(max_chars: int) -> int:
    """Return how much of an output is left for records after the notes."""
    return max(1, max_chars - min(_NOTE_ROOM, max_chars // 2))


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2,994 files`, `2 entries`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
