"""The workspaces of this host according to its settings, who works in them, and behind what. A separate module: tools load no settings."""

import os
from collections.abc import Sequence
from pathlib import Path

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.model import NamedWorkspace, ToolCategory
from forge_tools.sandbox.paths.confinement import OPEN_FOLDER, Root
from forge_tools.sandbox.paths.refusals import SECRETS, Protection
from forge_tools.sandbox.reach import Artifacts, Reach
from forge_tools.sandbox.walls.probe import TIERS, given, keeps_to
from forge_tools.sandbox.walls.user import User
from forge_tools.sandbox.web.access import Search, Web
from forge_tools.setting_types import CATEGORY, QUEUE, RootSettings, WorkspaceSettings

_BEHIND = {"plain": "without walls", "landlock": "behind Landlock, which knows no hosts"}


def reach_of(settings: Settings, *, artifacts: Artifacts | None = None) -> Reach:
    """Return what the tools of this host may touch.

    Raises:
        ConfigurationError: a folder of a workspace is missing; naming the setting, the workspace and the folder.
    """
    root: Path | Sequence[Root] = settings.workspace
    if settings.workspace_roots:
        others = [_root(one, "FORGE_WORKSPACE_ROOTS: ") for one in settings.workspace_roots]
        root = (Root(settings.workspace.absolute()), *others)
    search = None
    if settings.web_search:
        key = settings.web_search_key.get_secret_value()
        search = Search(provider=settings.web_search, url=settings.web_search_url, key=key)
    return Reach(
        root=root,
        workspaces={name: _roots(name, one) for name, one in settings.workspaces.items()},
        hostname=settings.hostname,
        shells=settings.shells_folder,
        artifacts=artifacts,
        web=Web(
            allowed=settings.web_allowed, ports=settings.web_ports, obeys_robots=settings.web_robots, search=search
        ),
        cache=settings.cache,
        max_part_bytes=min(settings.max_part_size, settings.artifact_quota),
    )


def user_of(settings: Settings, reach: Reach) -> User | None:
    """Return whom the process lane runs as, once it was tried that he reaches what tools need; None where nobody else is named.

    Raises:
        ConfigurationError: what is wrong with FORGE_RUN_AS, or with a folder.
    """
    if not settings.run_as:
        return None
    user = User.parse(settings.run_as)
    user.require(reach.all_roots())
    return user


def least_for(settings: Settings, tier: str, *, is_set: bool) -> str:
    """Return the least that may isolate a tool which is to have that tier here. The embedded stack has no other worker to run it.

    `is_set` says whether a setting asks for it, not the tool.
    """
    may_have_less = settings.is_embedded and not is_set
    return settings.walls_minimum or "plain" if may_have_less else tier


def commands_of(settings: Settings) -> tuple[str, dict[str, str]]:
    """Return the tier of the commands of `Bash` on this host, and the network that they have by queue; `""` is any other queue.

    Raises:
        ConfigurationError: a setting asks for a network that this tier cannot keep to.
    """
    asked = settings.walls_for("Bash", ToolCategory.EXECUTION)
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
    """Return by queue which setting decides the network of commands, and what it says."""
    of = settings.egress_of
    for name in ("Bash", f"{CATEGORY}{ToolCategory.EXECUTION}"):
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
