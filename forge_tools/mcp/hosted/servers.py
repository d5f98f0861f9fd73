"""A worker's servers, on a thread of their own so that they and tools never wait for each other, and their tools as ours."""

import asyncio
import base64
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from mcp import types
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from forge_tools.errors import InvalidToolError, first_problem
from forge_tools.mcp.hosted.configuration import Server, ServerWalls, read_servers
from forge_tools.mcp.hosted.connection import DISCONNECTED, MAX_TOOLS, Connection, DisconnectedError, GoneError
from forge_tools.mcp.thread import LoopThread, StoppedError
from forge_tools.model.content import Audio, File, Image, Link, Media, Part, Text
from forge_tools.model.overview import ServerState
from forge_tools.model.tools import Lane
from forge_tools.schema import clean_text
from forge_tools.secrets.scrubber import scrubbed
from forge_tools.tool.base import BaseTool, Capabilities, ExecutionContext, ToolCategory, ToolParameter, ToolResult
from forge_tools.tool.content import is_overlong, limit_output
from forge_tools.tool.registry import check_definition

STARTS_AT_ONCE = max(2, (os.cpu_count() or 2) // 2)
"""How many servers start at the same time: with more, a busy machine misses their timeouts."""

START_SECONDS = 15.0
"""How long a worker waits for its servers before it starts without the missing ones."""

MOST_LEFT_OUT = 50
"""For how many tools of one server its state says why they are not offered."""

TAG = "mcp"
TOOL_ERROR = "MCP_TOOL_ERROR"

MAX_NAME = 64
"""The most characters that providers accept."""

MAX_STRUCTURED_CHARS = 100_000
"""The limit for structured content beside a text, in metadata; without one it is the output, with its own limit."""

_HEAD = 40
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_END_SECONDS = 30.0
_TOOLS = TypeAdapter(list[types.Tool])

logger = logging.getLogger(__name__)


def hosted_servers(configuration: Path, max_message_bytes: int, memory: Path, walls: ServerWalls) -> "HostedServers":
    """Return the servers of a file, not started yet. The folder `memory` stores the tools they last had."""
    servers = read_servers(configuration, walls.network, walls.minimum)
    return HostedServers(servers, max_message_bytes, Memory(memory), walls)


class HostedServers:
    """Keeps each server connected until `close`, and knows its tools and its state. Thread-safe."""

    def __init__(self, servers: Sequence[Server], max_message_bytes: int, memory: "Memory", walls: ServerWalls) -> None:
        self._walls = walls
        self._changed: Callable[[], None] = lambda: None
        self._memory = memory
        self._thread = LoopThread("forge-tools-mcp")
        self._offers = [
            _Offer(server, self._thread, self._note, max_message_bytes=max_message_bytes, walls=walls)
            for server in servers
        ]
        self._supervisors: list[asyncio.Task[None]] = []

    def follow(self, changed: Callable[[], None]) -> None:
        """From now on call this, on the thread of the connections, whenever `tools` or `states` have something new."""
        self._changed = changed

    def start(self, seconds: float = START_SECONDS) -> list[BaseTool]:
        """Start all of them, some at a time; return the known tools once each was tried or `seconds` have passed.

        Until a server is connected, its tools are those it last had.
        """
        if self._offers:
            self._thread.submit(self._supervise(seconds)).result()
        return self.tools()

    def tools(self) -> list[BaseTool]:
        """Return every tool offered so far; one that its server removed reports that when called."""
        # Copies, since the thread of the connections adds to the originals.
        return [tool for offer in self._offers for tool in list(offer.tools.values())]

    def states(self) -> tuple[ServerState, ...]:
        return tuple(offer.state() for offer in self._offers)

    def close(self) -> None:
        """Disconnect from the servers, and end those that were started here."""
        with suppress(TimeoutError, StoppedError):
            self._thread.submit(self._end()).result(_END_SECONDS)
        self._thread.stop(_END_SECONDS)
        self._walls.close()

    async def _supervise(self, seconds: float) -> None:
        starts = asyncio.Semaphore(STARTS_AT_ONCE)
        for offer in self._offers:
            offer.renew({tool.name: tool for tool in self._memory.find(offer.connection.server)})
            supervisor = asyncio.create_task(offer.connection.supervise(starts))
            supervisor.add_done_callback(_tell_if_broken)
            self._supervisors.append(supervisor)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for offer in self._offers:
                    await offer.connection.was_tried.wait()

    async def _end(self) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)

    def _note(self, offer: "_Offer") -> None:
        connection = offer.connection
        if connection.status == "serving" and offer.renew(connection.tools):
            self._memory.keep(connection.server, connection.tools.values())
        self._changed()


class _Offer:
    """The offered tools of one server, and why the others are not. Any thread may read it."""

    def __init__(
        self, server: Server, thread: LoopThread, changed: Callable[["_Offer"], None], **connection: Any
    ) -> None:
        self.connection = Connection(server, lambda: changed(self), **connection)
        self.tools: dict[str, ServerTool] = {}
        self._thread = thread
        self._listed: Mapping[str, types.Tool] = {}
        self._left_out: Mapping[str, str] = {}

    def renew(self, listed: Mapping[str, types.Tool]) -> bool:
        """Offer what the server lists now; return whether anything changed."""
        if listed == self._listed:
            return False
        server, left_out = self.connection.server, dict[str, str]()
        for tool in filter(lambda one: server.offers(one.name), listed.values()):
            if reason := self._refusal(tool):
                left_out[tool_name(server.name, tool.name)] = reason
                facts = {"server": server.name, "reason": reason, "mcp_tool": tool.name}
                logger.warning("A tool of an MCP server cannot be offered", extra=facts)
        self._listed, self._left_out = dict(listed), left_out
        return True

    def state(self) -> ServerState:
        at, server = self.connection, self.connection.server
        return ServerState(
            server=clean_text(server.name),
            prefix=tool_prefix(server.name),
            status=at.status,
            since=at.since,
            tools=sum(tool_name(server.name, name) in self.tools for name in self._listed),
            why=clean_text(at.why),
            failures=at.failures,
            left_out=dict(islice(self._left_out.items(), MOST_LEFT_OUT)),
        )

    def _refusal(self, tool: types.Tool) -> str:
        """Offer a tool, or return why that is impossible."""
        if tool.execution is not None and tool.execution.task_support == "required":
            return "it can only be called as a task, which is not supported here"
        if tool_name(self.connection.server.name, tool.name) not in self.tools and len(self.tools) >= MAX_TOOLS:
            return f"the server has offered {MAX_TOOLS:,} tools since this worker started, the most that one may"
        try:
            made = ServerTool(tool, self.connection, self._thread)
            check_definition(made)
        except InvalidToolError as error:
            return error.message
        self.tools[made.name] = made
        return ""


class Memory:
    """The tools that servers last had: a file for each server and way to start it, without its secrets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, server: Server, tools: Iterable[types.Tool]) -> None:
        """Replace the record of the server; if that fails, nothing is known next time."""
        path = self._path(server)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.write_bytes(_TOOLS.dump_json(list(tools), by_alias=True, exclude_unset=True))
            new.replace(path)
        except OSError as error:
            facts = {"server": server.name, "reason": str(error)}
            logger.warning("The tools of an MCP server are not kept", extra=facts)

    def find(self, server: Server) -> list[types.Tool]:
        """Return the tools it had; empty if nothing is known."""
        try:
            return _TOOLS.validate_json(self._path(server).read_bytes())
        except (OSError, ValueError):
            return []

    def _path(self, server: Server) -> Path:
        means = json.dumps([server.name, server.command, server.args, str(server.cwd), server.url])
        return self._folder / f"{sha256(means.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"


class ServerTool(BaseTool):
    name: str = ""
    description: str = ""
    category = ToolCategory.MCP
    lane: Lane = "async"
    parameters: tuple[ToolParameter, ...] = ()

    def __init__(self, tool: types.Tool, connection: Connection, thread: LoopThread) -> None:
        server = connection.server
        self.name = tool_name(server.name, tool.name)
        said = clean_text((tool.description or tool.title or "").strip())
        self.description = said or f"The tool {clean_text(tool.name)} of the MCP server {clean_text(server.name)}."
        self.input_schema = tool.input_schema
        self.capabilities = capabilities_of(tool.annotations if server.trust_annotations else None)
        self.tags = (TAG, clean_text(server.name))
        self.timeout = server.timeout
        if server.command and connection.walls.tier(server) != "plain":
            self.walls = "namespace"  # the only tier in the async lane; results name the server's own
        self._called = tool.name
        self._connection = connection
        self._thread = thread

    async def _execute(self, context: ExecutionContext, /, **arguments: Any) -> ToolResult:
        result = await self._passed_on(arguments, context)
        # The executor limits outputs; a server's error may be as long.
        if is_overlong(said := ToolResult.ok(scrubbed(result.error)), context.max_output_size):
            cut = await limit_output(said, context, context.remaining or 0.0)
            result = result.model_copy(update={"error": cut.output, "metadata": result.metadata | cut.metadata})
        server = self._connection.server
        result.metadata["server"] = server.name
        if server.command:
            result.metadata["walls"] = self._connection.walls.tier(server)
        return result

    async def _passed_on(self, arguments: dict[str, Any], context: ExecutionContext) -> ToolResult:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            context.progress(progress, total, message)

        try:
            answer = await self._thread.run(self._connection.call(self._called, arguments, tell))
        except StoppedError:
            said = "MCP servers can no longer be called: this worker is stopping."
            return ToolResult.fail(said, error_code=DISCONNECTED, retryable=True)
        except DisconnectedError as error:
            known = {} if error.had_begun else {"retryable": True}
            return ToolResult.fail(error.message, error_code=error.code, **known)
        except GoneError as error:
            return ToolResult.fail(error.message, error_code=error.code, retryable=False)
        except MCPError as error:
            said = f"The MCP server '{self._connection.server.name}' refused the call: {error.message}"
            return ToolResult.fail(said, error_code=TOOL_ERROR, error_details={"code": error.code})
        except (RuntimeError, ValidationError) as error:  # RuntimeError: the answer breaks the tool's own schema
            why = first_problem(error) if isinstance(error, ValidationError) else error
            said = f"The answer of the MCP server '{self._connection.server.name}' is not a result: {why}"
            return ToolResult.fail(said[:2000], error_code=TOOL_ERROR)
        return result_of(answer)


def capabilities_of(hints: types.ToolAnnotations | None) -> Capabilities:
    """Trust a server's hints; assume the worst for what it does not state."""
    hints = hints or types.ToolAnnotations()
    is_read_only = hints.read_only_hint is True
    return Capabilities(
        writes_files=not is_read_only,
        executes_commands=not is_read_only and hints.destructive_hint is not False,
        accesses_network=hints.open_world_hint is not False,
        idempotent=is_read_only or hints.idempotent_hint is True,
    )


def tool_prefix(server: str) -> str:
    return _FOREIGN.sub("_", f"mcp__{server}__")[:_HEAD]


def tool_name(server: str, tool: str) -> str:
    """Return `mcp__server__tool`, with a hash of both if that would be too long or ambiguous.

    It depends only on the two, so that adding or removing a tool renames no other.
    """
    plain = f"mcp__{server}__{tool}"
    name = _FOREIGN.sub("_", plain)
    # A server whose name has or completes a `__` could share a name with another server and tool.
    if name == plain and len(name) <= MAX_NAME and "__" not in f"{server}_":
        return name
    mark = sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    if len(name) + len(mark) + 1 <= MAX_NAME:
        return f"{name}_{mark}"
    head = f"{name[:_HEAD]}_{mark}_"
    return head + name[len(head) - MAX_NAME :]


def result_of(answer: types.CallToolResult) -> ToolResult:
    """Map an answer: its texts joined, and other content as parts between them.

    Structured content becomes the output if there is nothing else, otherwise `structured` in the metadata.
    """
    parts = [_part(block) for block in answer.content]
    texts = [clean_text(part.text) for part in parts if isinstance(part, Text)]
    output: Any = "\n".join(texts) if len(texts) == len(parts) else parts
    structured = answer.structured_content
    encoded = "" if structured is None else json.dumps(structured, default=str)
    metadata: dict[str, Any] = {}
    if output and structured is not None:
        is_small = len(encoded) <= MAX_STRUCTURED_CHARS
        metadata = {"structured": structured} if is_small else {"structured_omitted_chars": len(encoded)}
    if answer.is_error:
        error = "\n".join(texts) or encoded or "The server reported a failure without a reason."
        failed = ToolResult.fail(error, error_code=TOOL_ERROR, **metadata)
        return failed if isinstance(output, str) else failed.model_copy(update={"output": output})
    return ToolResult.ok(output if output or structured is None else structured, **metadata)


def _part(block: types.ContentBlock) -> Part:
    if isinstance(block, types.TextContent):
        return Text(block.text)
    if isinstance(block, types.ResourceLink):
        return Link(str(block.uri), block.name, block.mime_type, block.description)
    if not isinstance(block, types.EmbeddedResource):
        kind = Image if block.type == "image" else Audio
        return _media(kind, block.type, block.data, block.mime_type)
    resource, uri = block.resource, str(block.resource.uri)
    if isinstance(resource, types.BlobResourceContents):
        return _media(File, f"resource {uri}", resource.blob, resource.mime_type, name=uri.rpartition("/")[2] or None)
    return Text(f"[resource {uri}{f' ({resource.mime_type})' if resource.mime_type else ''}]\n{resource.text}")


def _media(kind: type[Media], what: str, data: str, mime_type: str | None, name: str | None = None) -> Part:
    try:
        return kind(base64.b64decode(data, validate=True), name, mime_type)
    except ValueError:
        return Text(f"[{what}: its data is not base64]")


def _tell_if_broken(supervisor: asyncio.Task[None]) -> None:
    if not supervisor.cancelled() and supervisor.exception() is not None:
        logger.critical("An MCP server is no longer supervised", exc_info=supervisor.exception())
