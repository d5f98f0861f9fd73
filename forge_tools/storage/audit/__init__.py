"""The audit chain: what is over is hashed, row by row, in batches of which each holds the hash of the one before."""

from forge_tools.storage.audit.book import AuditBook
from forge_tools.storage.audit.chain import OvertakenError
from forge_tools.storage.audit.keys import Signer, Trust

__all__ = ["AuditBook", "OvertakenError", "Signer", "Trust"]
