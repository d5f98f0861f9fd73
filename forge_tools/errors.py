"""The tree of errors, and the stable codes that results and rows carry.

ForgeError
├── ConfigurationError          a setting is missing or contradicts another
├── InvalidCallError            a call that cannot be accepted as it is
├── CallFailedError             a call failed, and its output was asked for
├── ToolError                   something about one tool, named
│   ├── DuplicateToolError
│   ├── ToolNotFoundError
│   ├── ToolChangedError        it was disabled or redefined after its call was checked
│   └── InvalidToolError        a definition that a provider or the runtime would refuse
├── ToolFailure                 raised by a body: the text that the model reads
├── StorageError                the database refused or failed
│   ├── DatabaseUnavailableError
│   ├── DatabaseCorruptError
│   ├── SchemaVersionError      not migrated, or of an unknown version
│   ├── ArtifactDamagedError    its bytes are not those that were kept
│   ├── ArtifactFolderError     the folder of artifacts cannot be used
│   ├── ForeignRowError         a row that no forge-tools wrote
│   └── UnstorableRowError      one row the database refuses; its batch is unharmed
├── SubmitOutcomeUnknownError   the connection broke while a submit was being committed
├── ExecutionNotFoundError
├── ArtifactNotFoundError       nothing is kept under that name, or no longer
├── ResultTimeoutError          the wait ended; the execution goes on
├── EncryptionError             a secret cannot be encrypted, or cannot be decrypted here
├── SecretNotFoundError         a worker does not have the secret that a call names
├── StackError                  the embedded stack cannot start or be reached
└── SandboxError                a path, command or URL a tool may not touch
"""

import copyreg
from collections.abc import Sequence
from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    """What went wrong, as a stable word for programs to compare (`ToolResult.error_code`)."""

    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    TOOL_DISABLED = "TOOL_DISABLED"
    TOOL_CHANGED = "TOOL_CHANGED"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    INVALID_CALL = "INVALID_CALL"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    TOOL_ERROR = "TOOL_ERROR"
    EXPIRED = "EXPIRED"
    LOST = "LOST"
    BLOCKED = "BLOCKED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNSTORABLE = "UNSTORABLE"
    FOREIGN_ROW = "FOREIGN_ROW"
    SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    WORKSPACE_NOT_FOUND = "WORKSPACE_NOT_FOUND"
    WORKSPACE_NOT_HERE = "WORKSPACE_NOT_HERE"
    WALLS_NOT_AVAILABLE = "WALLS_NOT_AVAILABLE"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    SHELL_HOST_UNAVAILABLE = "SHELL_HOST_UNAVAILABLE"
    ENCRYPTION_FAILED = "ENCRYPTION_FAILED"
    ENGINE_NOT_AVAILABLE = "ENGINE_NOT_AVAILABLE"
    SECRET_NOT_FOUND = "SECRET_NOT_FOUND"  # noqa: S105  a code, not a password


class ForgeError(Exception):
    """Root of every error this package raises on purpose.

    `code` is stable across releases; `retryable` says whether the same request may succeed later.
    """

    code: str = "FORGE_ERROR"
    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException would call the constructor with `args`, which are not its parameters in every leaf.
        return copyreg.__newobj__, (type(self),), {"args": self.args, **vars(self)}  # type: ignore[attr-defined]  # in no stub


class ConfigurationError(ForgeError):
    """A setting is missing or contradicts another."""

    code = "CONFIGURATION_ERROR"


class InvalidCallError(ForgeError):
    """The call cannot be accepted: its values do not fit JSON, a limit or the tool. `details` lists every problem."""

    code: str = ErrorCode.VALIDATION_ERROR

    def __init__(self, message: str, details: Sequence[str] = (), *, code: str | None = None) -> None:
        super().__init__(message)
        self.details = list(details) or [message]
        self.code = code or type(self).code


class CallFailedError(ForgeError):
    """`unwrap` was called on a failed call; `result` holds everything known about it."""

    def __init__(self, message: str, code: str | None, result: object) -> None:
        super().__init__(message)
        self.code = code or ErrorCode.TOOL_ERROR
        self.result = result


class ToolError(ForgeError):
    """Something about one tool (spec S0-67)."""

    code: str = ErrorCode.TOOL_ERROR

    def __init__(self, tool_name: str, message: str) -> None:
        super().__init__(message)
        self.tool_name = tool_name

    def __str__(self) -> str:
        return f"Tool '{self.tool_name}' error: {self.message}"


class DuplicateToolError(ToolError):
    """A tool of that name or alias is already registered."""

    code = "DUPLICATE_TOOL"


class ToolNotFoundError(ToolError):
    """No tool of that name is registered."""

    code = ErrorCode.TOOL_NOT_FOUND


class InvalidToolError(ToolError):
    """A provider or the runtime would refuse the definition of the tool."""

    code = "INVALID_TOOL"


class ToolFailure(ForgeError):  # noqa: N818  raised on purpose by authors, not an error of theirs
    """Raise it in a body to fail with your own text: the model reads `text` unchanged, then `hint`.

    `retry` allows another attempt as far as the tool's capabilities allow; without it there is none. `details` is JSON
    for programs, and `code` the word that they compare.
    """

    code: str = ErrorCode.TOOL_ERROR

    def __init__(
        self,
        text: str,
        *,
        hint: str | None = None,
        retry: bool = False,
        details: Any = None,
        code: str = ErrorCode.TOOL_ERROR,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.hint = hint
        self.retry = retry
        self.details = details


class StorageError(ForgeError):
    """The database refused or failed."""

    code = "STORAGE_ERROR"


class DatabaseUnavailableError(StorageError):
    """The database cannot be reached, or did not answer in time."""

    code = ErrorCode.STORAGE_UNAVAILABLE
    retryable = True
    may_pass = True
    """Whether waiting may help. False if somebody has to change something first: a password, a name, a file's mode."""


class DatabaseCorruptError(StorageError):
    """The database file is damaged or is not a database."""

    code = "DATABASE_CORRUPT"


class SchemaVersionError(StorageError):
    """The database has not been migrated, or was migrated by newer code."""

    code = "SCHEMA_VERSION"


class ArtifactDamagedError(StorageError):
    """The bytes of an artifact differ from those that were stored, or some are missing."""

    code = "ARTIFACT_DAMAGED"


class ArtifactFolderError(StorageError):
    """The folder that holds the bytes of artifacts cannot be used."""

    code = "ARTIFACT_FOLDER"


class ForeignRowError(StorageError):
    """A row has values that its columns cannot have: it was not written by forge-tools."""

    code = ErrorCode.FOREIGN_ROW


class UnstorableRowError(StorageError):
    """The database refuses this one row; the rest of its batch is unharmed."""

    code = ErrorCode.UNSTORABLE


class SubmitOutcomeUnknownError(ForgeError):
    """The connection broke while a submit was being committed; attach to `execution_id` to find out."""

    code = ErrorCode.OUTCOME_UNKNOWN
    retryable = True

    def __init__(self, message: str, execution_id: str) -> None:
        super().__init__(message)
        self.execution_id = execution_id


class ExecutionNotFoundError(ForgeError):
    """No execution has that id."""

    code = "EXECUTION_NOT_FOUND"


class ArtifactNotFoundError(ForgeError):
    """No artifact has that name, or it no longer exists."""

    code = "ARTIFACT_NOT_FOUND"


class ResultTimeoutError(ForgeError, TimeoutError):
    """Waiting for the result took longer than the given limit; the execution goes on."""

    code = "RESULT_TIMEOUT"
    retryable = True


class EncryptionError(ForgeError):
    """A secret in a call cannot be encrypted, or cannot be decrypted here; nothing has run."""

    code = ErrorCode.ENCRYPTION_FAILED

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class SecretNotFoundError(ForgeError):
    """The worker lacks a secret that a call names; nothing has run."""

    code = ErrorCode.SECRET_NOT_FOUND
    retryable = True


class StackError(ForgeError):
    """The embedded stack cannot start, or cannot be reached."""

    code = "STACK_ERROR"


class SandboxError(ForgeError):
    """A tool requested a path, command or URL that it may not use."""

    code = "SANDBOX_ERROR"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or type(self).code


def first_problem(error: Any) -> str:
    """Say where Pydantic found its first problem, and what it is."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), own_words(first["msg"]))))


def own_words(message: str) -> str:
    """Return what a validator said, without what Pydantic puts before it."""
    return message.removeprefix("Value error, ")
