"""What our server offers: which tools, in whose name they are called, and how."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from forge_tools.model import ExecutionContext, ToolSpec, new_id
from forge_tools.schema import clean_text

LONG_QUEUE = "background"
LONGEST_NAME = 100
"""How many characters of a client's self-description are kept."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The protocol's form for names of tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """None admits every category, tag or name. `working_dir` and `dry_run` apply to every call.

    `session_id` is recorded with calls if the transport has no sessions. A call that lasts longer than `task_after`
    seconds becomes a task for clients that let the server decide. With `background_tools`, three more tools submit,
    inspect and cancel calls. `refresh_interval` is how often, in seconds, the catalogue is read. `routes` are the
    queues that configuration names for tools and categories.
    """

    categories: Collection[str] | None = None
    tags: Collection[str] | None = None
    names: Collection[str] | None = None
    working_dir: str = "."
    session_id: str = field(default_factory=lambda: f"mcp-{new_id()}")
    dry_run: bool = False
    background_tools: bool = False
    task_after: float = 5.0
    refresh_interval: float = 5.0
    routes: Mapping[str, str] = field(default_factory=dict)

    def admits(self, spec: ToolSpec) -> bool:
        """Whether clients see that tool and may call it."""
        return (
            _NAME.fullmatch(spec.name) is not None
            and (self.categories is None or spec.category in self.categories)
            and (self.tags is None or not set(spec.tags).isdisjoint(self.tags))
            and (self.names is None or not {spec.name, *spec.aliases}.isdisjoint(self.names))
        )

    def long_queue(self, spec: ToolSpec) -> str | None:
        """Return the queue for calls known to be long: the configured one, or else one where they starve nobody."""
        return None if {spec.name, spec.category.value} & self.routes.keys() else LONG_QUEUE

    def context(self, caller: "Caller", **metadata: object) -> ExecutionContext:
        """Return the context of a call of that client."""
        return ExecutionContext(
            working_dir=self.working_dir,
            session_id=caller.session_id,
            agent_id=caller.agent_id,
            dry_run=self.dry_run,
            metadata={"mcp": metadata} if metadata else {},
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the session, and the client's name for itself."""

    session_id: str
    agent_id: str | None = None


def agent_name(name: str, version: str) -> str:
    """Return a client's name and version for the history."""
    return clean_text(f"{name}/{version}" if version else name)[:LONGEST_NAME]
