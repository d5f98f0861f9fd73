"""The audit chain: executions that have ended are hashed row by row, in batches each of which holds the hash of the one before."""

from forge_tools.storage.audit.batches import OvertakenError
from forge_tools.storage.audit.chain import AuditChain
from forge_tools.storage.audit.proof import HeadFile, Signer, Trust

__all__ = ["AuditChain", "HeadFile", "OvertakenError", "Signer", "Trust"]
