"""Turns what a body returned into its result: media become parts whose bytes are kept, and the output is limited."""

import asyncio
import io
import json
import mimetypes
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from forge_tools.artifacts.media import HEAD_BYTES, TAIL_BYTES, Found, find
from forge_tools.artifacts.reader import PartReader
from forge_tools.errors import ErrorCode, ForgeError, SandboxError
from forge_tools.model.artifacts import SCHEME, TEXTS
from forge_tools.model.calls import ExecutionContext, ToolResult
from forge_tools.model.content import (
    CONTENT,
    MAX_PARTS,
    Audio,
    File,
    Image,
    Json,
    Link,
    Media,
    Part,
    Text,
    as_facts,
    drawn,
    holds_parts,
    human,
    is_part,
)
from forge_tools.sandbox.artifacts import keep_text
from forge_tools.sandbox.paths.confinement import Handle
from forge_tools.sandbox.paths.refusals import escape_path
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.processes.output import scrubbed_chunks, shortened
from forge_tools.sandbox.reach import REACH, Artifacts
from forge_tools.sandbox.spools import CHUNK_BYTES
from forge_tools.secrets.scrubber import scrubbed
from forge_tools.tool.base import brief

LEAST_SECONDS = 5.0
"""The least time for keeping the parts of a call, even if its timeout is near."""

MAX_JSON_CHARS = 10_000
"""The longest JSON value that stays a part; a longer one becomes text."""

MAX_NAME_BYTES = 200
"""The longest file name: file systems accept 255, and a caller's may get a number."""

MAX_ENDING_CHARS = 20
"""The longest ending that a longer name keeps."""

MARKER_CHARS = 250
"""An upper bound on the length of a marker."""

LEAST_OUTPUT_SECONDS = 0.5
"""The least time for keeping the output of a call, even if its timeout is near."""

_KINDS: dict[str, type[Media]] = {"image": Image, "audio": Audio, "file": File}


def opened(part: Media, context: ExecutionContext) -> Media:
    """Open a part's file if it is a path, so that later changes to the path do not matter."""
    if not isinstance(part.data, PurePath):
        return part
    handle = Workspace.for_context(context).open_file(escape_path(str(part.data)))
    return replace(part, data=handle, name=part.name or part.data.name)


async def with_parts(
    result: ToolResult, context: ExecutionContext, attached: Sequence[Media], seconds: float
) -> ToolResult:
    """Keep the parts in an output, and those attached; the output becomes text with one line for each of the former.

    If a part cannot be kept, the call fails with a message that says so, and keeps all the others.
    """
    gathering = _Gathering(context, seconds)
    output = result.output
    is_of_parts = holds_parts(output)
    if is_of_parts:
        for item in output if isinstance(output, list | tuple) else [output]:
            await gathering.add(item)
    for part in attached:
        await gathering.add(part)
    said = result.metadata.get(CONTENT)
    facts = [*(said if isinstance(said, list) else ()), *gathering.facts]
    update: dict[str, Any] = {"metadata": {**result.metadata, CONTENT: facts}}
    if is_of_parts or (output is None and result.success):
        update["output"] = "\n".join(gathering.lines)
    if gathering.problems:
        update |= _failure(result, gathering.problems)
    return result.model_copy(update=update).bind(gathering.source)


def is_overlong(result: ToolResult, limit: int) -> bool:
    """Whether an output is more than `limit` characters, as text or as JSON."""
    output = result.output
    if not result.success or output is None or isinstance(output, bool | int | float):
        return False
    return len(output if isinstance(output, str) else _json(output)) > limit


async def limit_output(result: ToolResult, context: ExecutionContext, seconds: float) -> ToolResult:
    """Replace an output that `is_overlong` by its head and tail, and say so in `metadata`.

    The whole output is kept as an artifact if the host has artifacts and this takes at most about `seconds`.
    """
    text = result.output
    if not isinstance(text, str):  # in a thread: indenting megabytes would delay every other tool on the loop
        text = await asyncio.to_thread(lambda: scrubbed(_json(result.output, 2)))  # what is in objects shows only now
    if result.metadata.get("truncated") is True and len(text) <= MARKER_CHARS:
        return result  # the tool has cut it itself; our marker would count the characters of the tool's marker
    kept = await keep_text(text, context, max(seconds, LEAST_OUTPUT_SECONDS))
    limit, newlines = context.max_output_size, text.count("\n")
    shown, facts = shortened(text, text, chars=len(text), newlines=newlines, limit=limit, kept=kept)
    return result.model_copy(update={"output": shown, "metadata": result.metadata | facts | kept})


def _failure(result: ToolResult, problems: list[str]) -> dict[str, Any]:
    listed = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
    said = f"The tool ran, but parts of its result are not kept: {listed}"
    if not result.success:
        return {"error": f"{result.error}\n{said}"}
    return {"success": False, "error": said, "error_code": ErrorCode.UNSTORABLE, "error_details": problems}


class _Gathering:
    """Collects the parts of one result."""

    def __init__(self, context: ExecutionContext, seconds: float) -> None:
        self._context = context
        self._until = asyncio.get_running_loop().time() + max(seconds, LEAST_SECONDS)
        self._reach = REACH.get()
        self.lines: list[str] = []
        self.facts: list[dict[str, Any]] = []
        self.problems: list[str] = []
        artifacts = self._reach.artifacts
        self.source: _Held | _Kept = _Held() if artifacts is None else _Kept(artifacts, context)

    async def add(self, item: Any) -> None:
        """Add the next item: text and JSON as lines, links unchanged, anything else as bytes."""
        if isinstance(item, str | Text):
            self.lines.append(item if isinstance(item, str) else item.text)
        elif isinstance(item, Link):
            self._note(item)
        elif isinstance(item, Json) or not is_part(item):
            self._add_json(item.value if isinstance(item, Json) else item)
        else:
            await self._add_media(item)

    def _add_json(self, value: Any) -> None:
        try:
            part = Json(to_jsonable_python(value))
        except PydanticSerializationError:
            part = Json(str(value))
        if len(part.line) > MAX_JSON_CHARS:
            self.lines.append(part.line)
        else:
            self._note(part)

    async def _add_media(self, item: Any) -> None:
        part = item if isinstance(item, Media) else File(bytes(item) if isinstance(item, bytearray) else item)
        try:
            part = await asyncio.to_thread(_with_bytes, part, self._context)
            text = await asyncio.to_thread(_as_text, item)
            if text is not None:
                self.lines.append(text)
            else:
                await self._keep(part, is_image=isinstance(item, Image))
        except (ForgeError, OSError, ValueError, TimeoutError) as error:
            self._refuse(part, error)

    async def _keep(self, part: Media, *, is_image: bool) -> None:
        if len(self.facts) >= MAX_PARTS:
            raise SandboxError(f"a result has {MAX_PARTS} parts at most", ErrorCode.UNSTORABLE)
        found, size, chunks = await asyncio.to_thread(_looked_at, part)
        limit = self._reach.max_part_bytes
        if size > limit:
            said = f"it has {human(size)}; the limit is {human(limit)}. Raise FORGE_MAX_PART_SIZE, or make it smaller"
            raise SandboxError(said, ErrorCode.UNSTORABLE)
        if found.mime_type.startswith(TEXTS):
            chunks = scrubbed_chunks(chunks)
        async with asyncio.timeout_at(self._until):
            uri, size = await self.source.put(chunks, found.mime_type, limit)
        note = found.note or ("not an image" if is_image and found.kind == "file" else None)
        name = _clean(scrubbed(part.name)) if part.name else self._name_of(found)
        kind = _KINDS[found.kind]
        self._note(kind(None, name, found.mime_type, size, uri, width=found.width, height=found.height, note=note))

    def _name_of(self, found: Found) -> str:
        number = sum(one.get("type") == found.kind for one in self.facts) + 1
        ending = mimetypes.guess_extension(found.mime_type) or f".{found.mime_type.rpartition('/')[2]}"
        return f"{found.kind}{'' if number == 1 else f'-{number}'}{ending}"

    def _note(self, part: Part) -> None:
        self.facts.append(as_facts(part))
        self.lines.append(part.line)

    def _refuse(self, part: Media, error: Exception) -> None:
        reason = error.message if isinstance(error, ForgeError) else str(error)
        if isinstance(error, TimeoutError):
            reason = "the call's time ran out before its bytes were kept"
        said = part.name or (str(part.data) if isinstance(part.data, str | PurePath) else None)
        label = " ".join(one for one in (part.type, said and _clean(said)) if one)
        self.problems.append(f"{label}: {reason}")
        self.lines.append(f"[{label}, not kept: {reason}]")


class _Held(PartReader):
    """Bytes in memory, for hosts without artifacts."""

    def __init__(self) -> None:
        super().__init__(self._of)
        self._held: dict[str, bytes] = {}

    async def put(self, chunks: AsyncIterator[bytes], _media_type: str, _limit: int) -> tuple[str, int]:
        data = b"".join([chunk async for chunk in chunks])
        uri = f"{SCHEME}{blake2b(data, digest_size=16).hexdigest()}"
        self._held[uri] = data
        return uri, len(data)

    async def _of(self, uri: str) -> AsyncIterator[bytes]:
        yield self._held[uri]


class _Kept(PartReader):
    """Bytes among the artifacts of this host."""

    def __init__(self, artifacts: Artifacts, context: ExecutionContext) -> None:
        super().__init__(self._of)
        self._artifacts = artifacts
        self._context = context

    async def put(self, chunks: AsyncIterator[bytes], media_type: str, limit: int) -> tuple[str, int]:
        kept = await self._artifacts.put(chunks, self._context, limit=limit, media_type=media_type)
        return kept.handle, kept.size

    async def _of(self, uri: str) -> AsyncIterator[bytes]:
        with os.fdopen(await self._artifacts.open(uri, self._context), "rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk


def _clean(name: str) -> str:
    path = PurePath("".join(char if char.isprintable() else "_" for char in PurePath(name).name))
    ending = path.suffix if len(path.suffix) <= MAX_ENDING_CHARS else ""
    stem = path.name.removesuffix(ending).encode()[: MAX_NAME_BYTES - len(ending.encode())]
    return stem.decode(errors="ignore") + ending or "_"


def _with_bytes(part: Media, context: ExecutionContext) -> Media:
    if isinstance(part.data, str):
        part = replace(part, data=PurePath(part.data))
    if (draw := drawn(part.data)) is None:
        return opened(part, context)
    buffer = io.BytesIO()
    draw(buffer, format="png")
    return replace(part, data=buffer.getvalue(), mime_type=None)  # whatever the tool called it, it is a PNG now


def _as_text(item: Any) -> str | None:
    """Decode bytes returned directly, if they are text."""
    if not isinstance(item, bytes | bytearray) or b"\0" in item[:HEAD_BYTES]:
        return None
    try:
        return item.decode()
    except UnicodeDecodeError:
        return None


def _looked_at(part: Media) -> tuple[Found, int, AsyncIterator[bytes]]:
    data = part.data
    if isinstance(data, Handle):
        size = os.fstat(data.fd).st_size
        head, tail = os.pread(data.fd, HEAD_BYTES, 0), os.pread(data.fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
        chunks = _of_file(data, size)
    elif isinstance(data, bytes):
        size, head, tail, chunks = len(data), data[:HEAD_BYTES], data[-TAIL_BYTES:], _of_bytes(data)
    else:
        raise SandboxError(f"it is a {type(data).__name__}; pass bytes, a path or an image", ErrorCode.UNSTORABLE)
    return find(head, tail, size, claim=part.mime_type, name=part.name), size, chunks


async def _of_file(handle: Handle, size: int) -> AsyncIterator[bytes]:
    """Yield as many bytes as there were when it was looked at; what is written at its end meanwhile is left out."""
    at = 0
    with handle:
        while at < size:
            chunk = await asyncio.to_thread(os.pread, handle.fd, min(CHUNK_BYTES, size - at), at)
            if not chunk:
                raise SandboxError(f"it was cut off at {at:,} bytes while it was being kept", ErrorCode.UNSTORABLE)
            yield chunk
            at += len(chunk)


async def _of_bytes(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, max(1, len(data)), CHUNK_BYTES):
        yield data[at : at + CHUNK_BYTES]


def _json(output: Any, indent: int | None = None) -> str:
    for render in (partial(json.dumps, indent=indent, ensure_ascii=False, default=str), repr):
        try:
            return render(output)
        except Exception:  # noqa: BLE001, S112 the methods of foreign objects may raise anything
            continue
    return brief(output)
