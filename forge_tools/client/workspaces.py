"""Which workspace a call works in, and which queue it has to take for that."""

from dataclasses import replace

from forge_tools.client.call import Call
from forge_tools.client.snapshot import Snapshot
from forge_tools.records import ExecutionContext
from forge_tools.storage import Store


async def in_workspace_of_session(call: Call, snapshot: Snapshot, store: Store) -> Call:
    """The call with the workspace that its session was bound to, unless it names one; asked once a snapshot and session."""
    context = call.context
    if not isinstance(context, ExecutionContext) or context.workspace is not None or not context.session_id:
        return call
    session_id = context.session_id
    if session_id not in snapshot.sessions:
        snapshot.sessions[session_id] = await store.workspaces.of_session(session_id)
    name = snapshot.sessions[session_id]
    return call if name is None else replace(call, context=context.model_copy(update={"workspace": name}))
