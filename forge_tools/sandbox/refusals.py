"""What a tool says about a path it may not, or cannot, open or write: a sentence and a stable code for each errno."""

import errno
import os

from forge_tools.errors import ErrorCode, SandboxError

NOT_FOUND = "FILE_NOT_FOUND"
NOT_A_FILE = "NOT_A_FILE"
NOT_A_DIRECTORY = "NOT_A_DIRECTORY"
OUTSIDE = "PATH_OUTSIDE_WORKSPACE"
PROTECTED = "PATH_PROTECTED"
PERMISSION_DENIED = "PERMISSION_DENIED"
READ_ONLY = "READ_ONLY_WORKSPACE"
DISK_FULL = "DISK_FULL"
TOO_LARGE = "FILE_TOO_LARGE"
STALE = "STALE_FILE"
LOCK_TIMEOUT = "LOCK_TIMEOUT"

_NOT_REGULAR = (NOT_A_FILE, "{} is not a regular file; only files and directories can be opened")
_FULL = (DISK_FULL, "No space left to write {}. Nothing was changed. Free some, then try again")

_SENTENCES = {
    errno.EXDEV: (OUTSIDE, "Path is outside the workspace: {}"),
    errno.ENOENT: (NOT_FOUND, "File not found: {}"),
    errno.ENOTDIR: (NOT_A_DIRECTORY, "{} goes through a file as if it were a directory"),
    errno.ELOOP: (NOT_A_FILE, "{} is a symbolic link that cannot be followed: it leads in a circle"),
    errno.EACCES: (PERMISSION_DENIED, "Permission denied: {}"),
    errno.EPERM: (PERMISSION_DENIED, "Permission denied: {}"),
    errno.ENXIO: _NOT_REGULAR,
    errno.ENODEV: _NOT_REGULAR,
    errno.ENAMETOOLONG: (ErrorCode.VALIDATION_ERROR, "Path has a name that is too long for this file system: {}"),
    errno.EROFS: (READ_ONLY, "{} is on a read-only file system. Write elsewhere in the workspace"),
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: (TOO_LARGE, "{} would be larger than this worker may write. Nothing was changed. Write several files"),
    errno.EBUSY: (PERMISSION_DENIED, "{} is a mount point or in use by the system, and cannot be replaced or deleted"),
}


def refusal(error: OSError, shown: str, doing: str = "open") -> SandboxError:
    """Turn what the kernel said into what the caller reads; nothing about the target of a link is revealed."""
    code = error.errno or 0
    if code in _SENTENCES:
        name, sentence = _SENTENCES[code]
        return SandboxError(sentence.format(shown), name)
    return SandboxError(f"Cannot {doing} {shown}: {os.strerror(code)}", ErrorCode.EXECUTION_ERROR)
