"""The workspaces of this host according to its settings, user and walls. A separate module: tools load no settings.

What is wrong raises a ConfigurationError that names the setting; the docstrings below do not repeat that.
"""

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

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.model.places import NamedWorkspace
from forge_tools.model.tools import COMMANDS, ToolCategory
from forge_tools.sandbox.paths.confinement import OPEN_FOLDER, Root
from forge_tools.sandbox.paths.refusals import SECRETS, Protection
from forge_tools.sandbox.reach import Artifacts, Reach
from forge_tools.sandbox.walls.privileges import ON_LINUX
from forge_tools.sandbox.walls.probe import TIERS, given, keeps_to
from forge_tools.sandbox.web.access import Search, Web
from forge_tools.setting_types import CATEGORY, QUEUE, RootSettings, WorkspaceSettings

_BEHIND = {"plain": "without walls", "landlock": "behind Landlock, which knows no hosts"}
_READ, _WRITE = os.R_OK | os.X_OK, os.R_OK | os.W_OK | os.X_OK
_OURS = Path(__file__).parents[1]
# To become the user and hand files over, and to find and end its processes.
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
        """Read `user` or `user:group`."""
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
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def become(self) -> None:
        """Change this process to that user for good: without other groups, and therefore without capabilities."""
        os.setgroups([])
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)

    def require(self, roots: Iterable[Root]) -> None:
        """Check, in a child that becomes the user, that Python, temporary files and these folders are open to it."""
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


def reach_of(settings: Settings, *, artifacts: Artifacts | None = None) -> Reach:
    """Return what the tools of this host may touch."""
    root: Path | Sequence[Root] = settings.workspace
    if settings.workspace_roots:
        others = [_root(one, "FORGE_WORKSPACE_ROOTS: ") for one in settings.workspace_roots]
        root = (Root(settings.workspace.absolute()), *others)
    search = None
    if settings.web_search:
        key = settings.web_search_key.get_secret_value()
        search = Search(provider=settings.web_search, url=settings.web_search_url, key=key)
    web = Web(allowed=settings.web_allowed, ports=settings.web_ports, obeys_robots=settings.web_robots, search=search)
    return Reach(
        root=root,
        workspaces={name: _roots(name, one) for name, one in settings.workspaces.items()},
        hostname=settings.hostname,
        shells=settings.shells_folder,
        artifacts=artifacts,
        web=web,
        cache=settings.cache,
        max_part_bytes=min(settings.max_part_size, settings.artifact_quota),
    )


def user_of(settings: Settings, reach: Reach) -> User | None:
    """Return the user that the process lane becomes, once it is known to reach what tools need; None if none is named."""
    if not settings.run_as:
        return None
    user = User.parse(settings.run_as)
    user.require(reach.all_roots())
    return user


def least_for(settings: Settings, tier: str, *, is_set: bool) -> str:
    """Return the lowest tier that may replace the one asked for here: the embedded stack has no other worker for the tool.

    `is_set` says whether a setting asks for it, not the tool.
    """
    may_have_less = settings.is_embedded and not is_set
    return settings.walls_minimum or "plain" if may_have_less else tier


def commands_of(settings: Settings) -> tuple[str, dict[str, str]]:
    """Return the tier of the commands of `Bash` on this host, and their network by queue; `""` is any other queue."""
    asked = settings.walls_for(COMMANDS, ToolCategory.EXECUTION)
    tier = given().of_commands(asked or "namespace")
    is_left = TIERS.index(tier) < TIERS.index(least_for(settings, asked or "namespace", is_set=asked is not None))
    wanted = _networks(settings)
    for setting, network in wanted.values():
        if network and not is_left and not keeps_to(tier, network):
            why = (
                f"as FORGE_WALLS_OF says {asked}" if asked else f"as there are no namespaces ({given().no_namespaces})"
            )
            kept = " or ".join(network for network in ("host", "none") if keeps_to(tier, network))
            raise ConfigurationError(
                f"{setting}={network} cannot be kept: commands run {_BEHIND[tier]}, {why}. Make it {kept}, or set FORGE_WALLS_OF="
                """'{"Bash": "namespace"}', which refuses commands where there are no namespaces (docs/walls.md)."""
            )
    usual = "host" if settings.is_embedded else "none"
    return tier, {queue: network or usual for queue, (_, network) in wanted.items()}


def announced(settings: Settings) -> list[NamedWorkspace]:
    """Return the workspaces by name, as other hosts and people may see them."""
    return [
        NamedWorkspace(
            name=name,
            is_shared=one.shared,
            roots=tuple(f"{root.path.absolute()}{' (read-only)' if root.read_only else ''}" for root in one.roots),
        )
        for name, one in settings.workspaces.items()
    ]


def _networks(settings: Settings) -> dict[str, tuple[str, str]]:
    of = settings.egress_of
    for name in (COMMANDS, f"{CATEGORY}{ToolCategory.EXECUTION}"):
        if name in of:
            return {"": (f"FORGE_EGRESS_OF: {name}", of[name])}
    queues = {name: network for name, network in of.items() if name.startswith(QUEUE)}
    return {"": ("FORGE_EGRESS", settings.egress)} | {
        name.removeprefix(QUEUE): (f"FORGE_EGRESS_OF: {name}", network) for name, network in queues.items()
    }


def _roots(name: str, workspace: WorkspaceSettings) -> tuple[Root, ...]:
    protection = Protection(secrets=(*SECRETS, *workspace.protected))
    return tuple(_root(one, f"FORGE_WORKSPACES: workspace {name}: ", protection) for one in workspace.roots)


def _root(one: RootSettings, where: str, protection: Protection | None = None) -> Root:
    path = one.path.absolute()
    try:
        os.close(os.open(path, OPEN_FOLDER))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        what = f"{where}{path} cannot be opened on this host: {reason}. Make it a folder that this user can read"
        raise ConfigurationError(f"{what}, or take it out of the setting.") from error
    return Root(path, is_read_only=one.read_only, protection=protection or Protection())


def _lacking_capabilities() -> list[str]:
    if not ON_LINUX:
        return []
    status = Path("/proc/self/status").read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))
    return [name for name, number in _CAPABILITIES.items() if not effective >> number & 1]


def _closed_above(path: str) -> str:
    """Return the outermost closed folder above a path, or above the target of the link that it is; empty if there is none."""
    above = (str(folder) for one in (path, os.path.realpath(path)) for folder in reversed(Path(one).parents))
    return next((folder for folder in above if not os.access(folder, os.X_OK)), "")
