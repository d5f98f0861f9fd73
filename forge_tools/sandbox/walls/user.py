"""The user that the children of a worker started by root become: who it is, and what must be open to it."""

import grp
import json
import os
import pwd
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from forge_tools.errors import ConfigurationError
from forge_tools.sandbox.paths.confinement import Root
from forge_tools.sandbox.walls.privileges import ON_LINUX

_READ, _WRITE = os.R_OK | os.X_OK, os.R_OK | os.W_OK | os.X_OK
_OURS = Path(__file__).parents[2]
_CAPABILITIES = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_PTRACE": 19}


@dataclass(frozen=True, slots=True)
class User:
    """A user with a single group."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def parse(cls, text: str) -> "User":
        """Read `user` or `user:group`.

        Raises:
            ConfigurationError: the host has no such user or group, it is root, or this process is not root.
        """
        name, _, group = text.partition(":")
        try:
            user = pwd.getpwnam(name)
        except KeyError as error:
            raise ConfigurationError(f"FORGE_RUN_AS: this host has no user {name!r}.") from error
        try:
            gid = grp.getgrnam(group).gr_gid if group else user.pw_gid
        except KeyError as error:
            raise ConfigurationError(f"FORGE_RUN_AS: this host has no group {group!r}.") from error
        why = ""
        if not user.pw_uid or not gid:
            why = " is root, who gives tools all of this host: name another user and group."
        elif os.geteuid():
            why = (
                f": a worker becomes another user only if root starts it. Start this one as {user.pw_name} without it."
            )
        elif lacking := _lacking_capabilities():
            why = f": root lacks capabilities here: {', '.join(lacking)}."
        if why:
            raise ConfigurationError(f"FORGE_RUN_AS={text}{why}")
        return cls(user.pw_name, user.pw_uid, gid, user.pw_dir)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that name the user."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def become(self) -> None:
        """Change this process to that user for good: without other groups, and therefore without capabilities.

        Raises:
            OSError: this process may not.
        """
        os.setgroups([])
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)

    def require(self, roots: Iterable[Root]) -> None:
        """Check, in a throw-away child that becomes the user, that Python, temporary files and these folders are open to it.

        Raises:
            ConfigurationError: naming what is closed, and the command that opens it.
        """
        programs = [(sys.executable, os.X_OK), (str(_OURS), _READ), (tempfile.gettempdir(), _WRITE)]
        folders = [(str(root.path), _READ if root.is_read_only else _WRITE) for root in roots]
        if (closed := self._first_closed([*programs, *folders])) is None:
            return
        path, above = closed
        if not path:
            why = f"this worker cannot become {self.name}: {above}"
        elif above:
            why = f"{self.name} cannot reach {path}, because {above} is closed. Have it elsewhere, or: chmod o+x {quote(above)}"
        elif path in {one for one, _ in folders}:
            group, place = grp.getgrgid(self.gid).gr_name, quote(path)
            why = f"{self.name} cannot use the workspace {path} as it should. Open it: chgrp -R {group} {place}"
            why += f" && chmod -R g+rwX {place} && chmod g+s {place}"  # files created later get its group, too
        else:
            why = f"{self.name} cannot use {path}, which tools need"
        raise ConfigurationError(f"FORGE_RUN_AS: {why}.")

    def _first_closed(self, needed: Sequence[tuple[str, int]]) -> tuple[str, str] | None:
        """Find the first path that the user cannot use in that way, and the folder above it that is closed, if any.

        If this process cannot become the user, the path is empty and the reason follows.
        """
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            found = ["", "the trial failed"]
            try:
                self.become()
                found = next(([path, _closed_above(path)] for path, how in needed if not os.access(path, how)), [])
            except OSError as error:
                found = ["", error.strerror or str(error)]
            finally:
                os.write(write, json.dumps(found).encode())
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as answer:
            found = json.load(answer)
        os.waitpid(pid, 0)
        return (found[0], found[1]) if found else None


def _lacking_capabilities() -> list[str]:
    """List the capabilities that root lacks for becoming a user and for ending what that user's processes leave behind."""
    if not ON_LINUX:
        return []
    status = Path("/proc/self/status").read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))
    return [name for name, number in _CAPABILITIES.items() if not effective >> number & 1]


def _closed_above(path: str) -> str:
    """Return the outermost closed folder above a path, or above the target of the link that it is; empty if there is none."""
    above = (str(folder) for one in (path, os.path.realpath(path)) for folder in reversed(Path(one).parents))
    return next((folder for folder in above if not os.access(folder, os.X_OK)), "")
