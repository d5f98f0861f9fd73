"""Settings become workspaces, roots in order, read-only if configured, with extra protected names; and the walls of commands."""

from pathlib import Path
from typing import Any

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, SandboxError
from forge_tools.sandbox.configured import announced, commands_of, reach_of
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.sandbox.walls.probe import given
from tests.walled import without


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("repo", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "docs/plan.draft").write_text("plan")
    return tmp_path


def settings(folders: Path, **workspaces: Any) -> Settings:
    return Settings.load(workspace=folders / "repo", workspaces=workspaces)


def test_a_workspace_has_its_roots_in_order_and_says_so(folders: Path) -> None:
    roots = [str(folders / "repo"), {"path": str(folders / "docs"), "read_only": True}]
    given = settings(folders, repo={"roots": roots, "shared": True}, own={"roots": roots[:1]})

    assert [(root.path.name, root.is_read_only) for root in reach_of(given).workspaces["repo"]] == [
        ("repo", False),
        ("docs", True),
    ]
    assert [(one.name, one.is_shared, one.roots) for one in announced(given)] == [
        ("repo", True, (f"{folders}/repo", f"{folders}/docs (read-only)")),
        ("own", False, (f"{folders}/repo",)),
    ]


def test_what_a_workspace_protects_comes_beside_the_usual(folders: Path) -> None:
    [docs] = reach_of(
        settings(folders, docs={"roots": [str(folders / "docs")], "protected": ["*.draft"]})
    ).workspaces.values()
    for name in ("plan.draft", ".env", "id_rsa"):
        (folders / "docs" / name).touch()
        with pytest.raises(SandboxError, match="protected by policy"):
            Workspace(docs).open(name)


def test_the_unnamed_workspace_may_have_more_roots(folders: Path) -> None:
    more = [{"path": str(folders / "docs"), "read_only": True}]
    given = Settings.load(workspace=folders / "repo", workspace_roots=more)
    root = reach_of(given).root
    assert root is not None
    workspace = Workspace(root)
    workspace.place("new").close()
    workspace.open(f"{folders}/docs/plan.draft").close()
    with pytest.raises(SandboxError, match="read-only"):
        workspace.place(f"{folders}/docs/new")
    assert reach_of(Settings.load(workspace=folders / "repo")).root == folders / "repo"


@pytest.mark.parametrize(("path", "why"), [("gone", "No such file"), ("docs/plan.draft", "Not a directory")])
def test_a_root_that_is_not_there_is_named_with_its_setting(folders: Path, path: str, why: str) -> None:
    given = settings(folders, repo={"roots": [str(folders / path)]})
    with pytest.raises(ConfigurationError, match=f"FORGE_WORKSPACES: workspace repo: .*{path} cannot be opened.*{why}"):
        reach_of(given)
    given = Settings.load(workspace=folders / "repo", workspace_roots=[str(folders / path)])
    with pytest.raises(ConfigurationError, match=f"FORGE_WORKSPACE_ROOTS: .*{path} cannot be opened"):
        reach_of(given)


def on_a_machine_without(calls: list[str], **settings: Any) -> str:
    """The tier of commands and their network, or why there is none."""

    def work() -> object:
        try:
            return commands_of(Settings.load(**settings))
        except ConfigurationError as error:
            return error.message

    return without(work, *calls)


NO_NAMESPACES, NO_WALLS = ["unshare"], ["unshare", "landlock_create_ruleset"]
SERVED = {"broker_url": "redis://broker", "database_url": "postgresql://db/forge"}


@pytest.mark.parametrize(
    ("calls", "settings", "said"),
    [
        (
            NO_WALLS,
            {"egress": "none"},
            "FORGE_EGRESS=none cannot be kept: commands run without walls, as there are no namespaces",
        ),
        (NO_WALLS, {"egress": "a.test"}, "FORGE_EGRESS=a.test cannot be kept: commands run without walls, as there"),
        (NO_WALLS, {"egress": "host"}, "('plain', {'': 'host'})"),
        ([], {"egress": "none", "walls_of": {"Bash": "plain"}}, "without walls, as FORGE_WALLS_OF says plain"),
        ([], {"egress": "none", "walls_of": {"category:execution": "plain"}} | SERVED, "as FORGE_WALLS_OF says plain"),
        ([], {"walls_of": {"Bash": "plain"}} | SERVED, "('plain', {'': 'none'})"),
        (NO_WALLS, {"egress": "none"} | SERVED, "('plain', {'': 'none'})"),
        (NO_WALLS, {"egress": "none", "walls_of": {"Bash": "namespace"}}, "('plain', {'': 'none'})"),
        (
            [],
            {"egress_of": {"queue:low": "none"}, "walls_of": {"Bash": "plain"}},
            "FORGE_EGRESS_OF: queue:low=none cannot be kept: commands run without walls, as FORGE_WALLS_OF says plain. Make it host",
        ),
        (
            NO_WALLS,
            {"egress_of": {"category:execution": "a.test"}},
            "FORGE_EGRESS_OF: category:execution=a.test cannot be",
        ),
        (NO_WALLS, {"egress_of": {"Bash": "host", "category:execution": "a.test"}}, "('plain', {'': 'host'})"),
        (NO_WALLS, {"egress_of": {"category:mcp": "none"}}, "('plain', {'': 'host'})"),
        (NO_WALLS, {"egress": "none", "walls_minimum": "landlock"}, "('plain', {'': 'none'})"),
    ],
)
def test_a_network_that_the_walls_of_commands_cannot_keep_to_is_refused_unless_no_command_runs(
    calls: list[str], settings: dict[str, Any], said: str
) -> None:
    assert said in on_a_machine_without(calls, **settings)


def test_landlock_keeps_commands_from_any_network_but_knows_no_hosts() -> None:
    if given().tier != "landlock":
        pytest.xfail(str(given()))
    lowered = {"walls_of": {"Bash": "landlock"}}

    assert on_a_machine_without(NO_NAMESPACES, egress="none") == "('landlock', {'': 'none'})"
    assert on_a_machine_without(NO_NAMESPACES, egress="a.test", **SERVED) == "('landlock', {'': 'a.test'})", (
        "it is withheld"
    )
    for settings in ({}, lowered, lowered | SERVED):
        said = on_a_machine_without(NO_NAMESPACES, egress="a.test", **settings)
        assert "FORGE_EGRESS=a.test cannot be kept: commands run behind Landlock, which knows no hosts" in said
        assert all(way in said for way in ("Make it host or none", 'FORGE_WALLS_OF=\'{"Bash": "namespace"}\''))
