"""The definition of a tool that an execution was accepted with, and the one that its worker had."""

from dataclasses import dataclass

from forge_tools.errors import ToolNotFoundError
from forge_tools.records import ExecutionRecord, ToolSpec
from forge_tools.storage import Store


@dataclass(frozen=True, slots=True)
class Definition:
    """What the catalogue knows of both: `spec` is what the call was checked by; `ran_as` is (version, digest) on its worker."""

    spec: ToolSpec | None
    ran_as: tuple[str, str] | None

    def said(self, record: ExecutionRecord) -> str:
        """Both in a line, the worker's only where it differs."""
        accepted = (record.tool_version, record.tool_digest)
        if self.spec is None:
            return "not in the catalogue"
        other = self.ran_as if self.ran_as not in (None, accepted) else None
        return _shown(accepted) + (f", run as {_shown(other)} by its worker" if other else "")

    def require(self, record: ExecutionRecord) -> ToolSpec:
        """The definition that the call was checked by.

        Raises:
            ToolNotFoundError: no worker published it.
        """
        if self.spec is None:
            raise ToolNotFoundError(record.tool, "The catalogue does not have the definition that this call named")
        return self.spec


async def definition_of(store: Store, record: ExecutionRecord) -> Definition:
    """Look both up."""
    spec = await store.catalogue.definition(record.tool, record.tool_version, record.tool_digest)
    return Definition(spec, await store.catalogue.hosted(record.worker_id, record.tool) if record.worker_id else None)


def _shown(definition: tuple[str, str]) -> str:
    version, digest = definition
    return f"{version} ({digest})"
