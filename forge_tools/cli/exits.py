"""Exit codes: what a script that runs `forge-tools` may rely on."""

from forge_tools.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    DuplicateToolError,
    ForgeError,
    InvalidToolError,
    StackError,
    StorageError,
    SubmitOutcomeUnknownError,
)

OK = 0
FAILED = 1
USAGE = 2
UNAVAILABLE = 69
CONFIGURATION = 78
INTERRUPTED = 130

EPILOG = """\b
Exit codes:
  0    done
  1    the call or the command failed
  2    the command line is wrong
  69   a service cannot be reached or used: database, broker, embedded stack
  78   the configuration or the installation must be mended
  130  interrupted
"""

_CODES: tuple[tuple[type[ForgeError], int], ...] = (
    (ConfigurationError, CONFIGURATION),
    (InvalidToolError, CONFIGURATION),
    (DuplicateToolError, CONFIGURATION),
    (StorageError, UNAVAILABLE),
    (BrokerUnavailableError, UNAVAILABLE),
    (StackError, UNAVAILABLE),
    (SubmitOutcomeUnknownError, UNAVAILABLE),
)


def code_for(error: ForgeError) -> int:
    """The exit code that says what kind of error ended the command."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
