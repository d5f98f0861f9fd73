"""Where tools come from, and the errors when they cannot be loaded."""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError
from forge_tools.project import find_project
from forge_tools.tool import admit, load_project, load_tools, loading, require_walled
from forge_tools.tool.base import BaseTool, ToolCategory
from tests.spec.sample_tools import Bash, Echo, Read, Write

SOURCE = """
from tests.spec.sample_tools import Bash, Echo, Read, Recorder, BaseTool

ONE = Read()
TOOLS = [Read, Bash]
MIXED = (Echo, ONE)
EMPTY = ()
NUMBER = 5
WRONG = [Read, "Bash"]
NESTED = [[Read]]

def make():
    return [Echo(), Recorder(name="Made")]

def make_class():
    return Echo

def needs(argument):
    return Echo()

def fails():
    raise RuntimeError("no licence")

def makes_text():
    return "Echo"

class Half(BaseTool):
    name = "Half"

class Configured(Echo):
    def __init__(self, url):
        self.url = url

class Box:
    tools = [Read]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a module and make it importable for the test."""

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)

    monkeypatch.syspath_prepend(tmp_path)
    write("mytools", SOURCE)
    return write


def load(*references: str) -> list[BaseTool]:
    return load_tools(references, builtins=False, entry_points=False)


def names(*references: str) -> list[str]:
    return [tool.spec.name for tool in load(*references)]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("mytools:Read", ["Read"]),
        ("mytools:ONE", ["Read"]),
        ("mytools:TOOLS", ["Read", "Bash"]),
        ("mytools:MIXED", ["Echo", "Read"]),
        ("mytools:EMPTY", []),
        ("mytools:make", ["Echo", "Made"]),
        ("mytools:make_class", ["Echo"]),
        ("mytools:Box.tools", ["Read"]),
    ],
)
def test_a_reference_may_name_all_of_these(reference: str, expected: list[str]) -> None:
    assert names(reference) == expected


@pytest.mark.usefixtures("module")
def test_a_class_that_several_references_name_is_created_once() -> None:
    assert names("mytools:TOOLS", "mytools:Read", "mytools:Bash", "mytools:ONE") == ["Read", "Bash", "Read"]
    assert names("mytools:ONE", "mytools:ONE") == ["Read"]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (":TOOLS", "is not a reference to tools"),
        ("mytools:", "is not a reference to tools"),
        (".mytools", "is not a reference to tools"),
        ("mytools:TOOL", "mytools has no 'TOOL' (did you mean 'TOOLS'?)."),
        (
            "mytools:zzz",
            "mytools has no 'zzz'; its tools are Bash, Echo, Read, Recorder, BaseTool, ONE, Half, Configured.",
        ),
        ("mytools:NUMBER", "'mytools:NUMBER' is an object of type int. It must be a BaseTool subclass"),
        ("mytools:Box", "'mytools:Box' is the class Box. It must be"),
        ("mytools:WRONG", "'mytools:WRONG' holds an object of type str. It must be"),
        ("mytools:NESTED", "'mytools:NESTED' holds an object of type list. It must be"),
        ("mytools:needs", "calling it without arguments failed with TypeError"),
        (
            "mytools:needs",
            "missing 1 required positional argument: 'argument'. To make it a tool, decorate it with @tool.",
        ),
        ("mytools:fails", "calling it without arguments failed with RuntimeError: no licence"),
        ("mytools:makes_text", "What 'mytools:makes_text' returns is an object of type str. It must be"),
        ("mytools:Half", "Half does not declare its _execute, category, description, parameters. Define them, or"),
        ("mytools:Configured", "Configured() failed with TypeError"),
    ],
)
def test_a_reference_that_names_no_tools_is_told_what_is_there(reference: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(reference)

    assert message in str(caught.value)
    assert reference in str(caught.value)


@pytest.mark.parametrize("on_path", [True, False])
def test_a_missing_module_is_told_where_was_looked(
    on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""] if on_path else [entry for entry in sys.path if entry])

    with pytest.raises(ConfigurationError) as caught:
        load("nowhere.tools:TOOLS")

    state = "is" if on_path else "is not"
    assert str(caught.value) == (
        f"'nowhere.tools:TOOLS': there is no module 'nowhere'. The current folder {tmp_path} {state} on sys.path: "
        "start in the folder that holds nowhere.py, give the path of the file, or name its folder in PYTHONPATH."
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit('stop')", "SystemExit: stop"),
        ("def broken(:", "SyntaxError: "),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_why(
    source: str, reason: str, module: Callable[[str, str], None]
) -> None:
    module("brokentools", source)

    with pytest.raises(ConfigurationError) as caught:
        load("brokentools:TOOLS")

    assert "'brokentools:TOOLS': importing brokentools failed" in str(caught.value)
    assert f" with {reason}" in str(caught.value)
    assert caught.value.__cause__ is not None


def install(folder: Path, value: str) -> None:
    """Write the metadata of a package with one plugin."""
    metadata = folder / "acme_tools-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tools\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[forge_tools.tools]\nacme = {value}\n")


@pytest.mark.usefixtures("module")
def test_a_package_that_is_installed_is_found_by_its_metadata(tmp_path: Path) -> None:
    install(tmp_path, "mytools:TOOLS")

    assert [tool.spec.name for tool in load_tools(["mytools:Echo"], builtins=False)] == ["Read", "Bash", "Echo"]


def test_a_broken_plugin_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "nowhere_at_all:TOOLS")

    said = "^the plugin 'acme' of package acme-tools: there is no module 'nowhere_at_all'"
    with pytest.raises(ConfigurationError, match=said):
        load_tools(builtins=False)


def test_a_broken_plugin_of_no_package_is_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("acme", "nowhere_at_all:TOOLS", loading.GROUP)
    monkeypatch.setattr(loading, "installed_entry_points", lambda group: [point])

    with pytest.raises(ConfigurationError, match="of an unknown package: there is no module"):
        load_tools(builtins=False)


def test_the_builtin_tools_come_first() -> None:
    found = [tool.spec.name for tool in load_tools(["tests.spec.sample_tools:Echo"], entry_points=False)]

    assert {"Read", "Grep", "Bash"} <= set(found)
    assert found[-1] == "Echo"


# Admission


TOOLS = [Read(), Write(), Bash(), Echo()]


@pytest.mark.parametrize(
    ("categories", "admitted"),
    [
        (None, ["Read", "Write", "Bash", "Echo"]),
        (["file"], ["Read", "Write"]),
        ([ToolCategory.EXECUTION, "other"], ["Bash", "Echo"]),
    ],
)
def test_a_worker_offers_what_categories_admit(categories: list[str] | None, admitted: list[str]) -> None:
    assert [tool.spec.name for tool in admit(TOOLS, categories)] == admitted


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        (["files"], r"There is no category 'files' \(did you mean 'file'\?\). There are: execution, file"),
        (["web"], "admit none of the 4 tools"),
        ([], "admit none of the 4 tools"),
    ],
)
def test_categories_that_do_not_exist_or_admit_nothing_are_refused(categories: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        admit(TOOLS, categories)


def test_no_tools_at_all_stay_none() -> None:
    assert admit([], ["file"]) == []


# Modules, files, packages, projects


PROJECT = """
from tests.spec.sample_tools import Echo, Read
from forge_tools.tool.base import BaseTool
from forge_tools.tool import ToolFactory, tool

@tool
def shout(text: str) -> str:
    '''Say it louder.'''
    return text.upper()

class Own(Read):
    name = "Own"

class Base(BaseTool):
    category = "file"

class Derived(Base):
    "Derive."
    name = "Derived"
    parameters = ()
    async def _execute(self, context): ...

class _Unfinished(BaseTool):
    name = "Unfinished"

class Limited(Echo):
    name = "Limited"
    def __init__(self, limit: int) -> None:
        self.limit = limit

factory = ToolFactory().add(Limited, limit=3)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is current; what is imported from it is forgotten after the test."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(
            getattr(sys.modules[name], "__file__", "") or getattr(sys.modules[name], "__path__", "")
        ):
            del sys.modules[name]


def own(*references: str, **overrides: Any) -> list[str]:
    return [tool.spec.name for tool in load_project(Settings.load(**overrides), references)]


def test_a_module_stands_for_the_tools_it_has_and_the_classes_it_defines(project: Path) -> None:
    (project / "ownmodule.py").write_text(PROJECT)

    assert own("ownmodule") == own("./ownmodule.py") == own("ownmodule.py") == ["shout", "Limited", "Own", "Derived"]
    assert own("ownmodule.py:shout") == ["shout"]


def test_a_package_stands_for_the_tools_of_all_its_modules(project: Path) -> None:
    (project / "ownpackage" / "deep").mkdir(parents=True)
    for name, source in {
        "__init__.py": "from ownpackage.one import shout",
        "one.py": PROJECT,
        "test_one.py": "raise RuntimeError('tests are not imported')",
        "deep/__init__.py": "",
        "deep/two.py": PROJECT.replace("shout", "whisper")
        .replace("Own", "Other")
        .replace("Limited", "More")
        .replace("Derived", "Further"),
    }.items():
        (project / "ownpackage" / name).write_text(source)

    assert set(own("ownpackage")) == {"shout", "whisper", "Own", "Other", "Limited", "More", "Derived", "Further"}
    assert own("ownpackage/deep/two.py") == ["whisper", "More", "Other", "Further"]


def test_pyproject_names_the_tools_from_any_folder_below(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").write_text('[tool.forge-tools]\ntools = ["ownmodule", "src/more.py"]\n')
    (project / "ownmodule.py").write_text(PROJECT)
    (project / "src" / "deep").mkdir(parents=True)
    (project / "src" / "more.py").write_text(PROJECT.replace("shout", "more").partition("class")[0])
    monkeypatch.chdir(project / "src" / "deep")

    assert own() == ["shout", "Limited", "Own", "Derived", "more"]
    assert own("ownmodule:shout") == ["shout", "Limited", "Own", "Derived", "more"]
    monkeypatch.setenv("FORGE_TOOLS", '["ownmodule:shout"]')
    assert own() == ["shout"]


@pytest.mark.parametrize(
    ("pyproject", "said"),
    [
        ('tools = ["nowhere"]', "'nowhere' in [tool.forge-tools] of {}/pyproject.toml: there is no module 'nowhere'"),
        ('tools = ["lost/x.py"]', " in [tool.forge-tools] of {0}/pyproject.toml: {0}/lost/x.py does not exist"),
        ('tools = "mytools"', "{}/pyproject.toml, [tool.forge-tools]: tools must be a list of strings"),
        ("tool = []", "{}/pyproject.toml, [tool.forge-tools]: there is no setting 'tool'"),
        ("tools = [", "{}/pyproject.toml is no TOML: "),
    ],
)
def test_what_is_wrong_in_pyproject_is_told_with_its_file(pyproject: str, said: str, project: Path) -> None:
    (project / "pyproject.toml").write_text(f"[tool.forge-tools]\n{pyproject}\n")

    with pytest.raises(ConfigurationError) as caught:
        own()

    assert said.format(project) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("halffile.py", "x = 1\ndef half(:\n", "failed at {}/halffile.py:2 with SyntaxError: invalid syntax."),
        (
            "failing.py",
            "def f():\n    1 / 0\n\nf()\n",
            "failed at {}/failing.py:2 with ZeroDivisionError: division by zero.",
        ),
        (
            "plain.py",
            "from forge_tools.tool import tool\n\n@tool\ndef f() -> int:\n    return 1\n",
            " at {}/plain.py:3 with InvalidToolError: Tool 'f' error: plain.f has no docstring. Write one that says what",
        ),
        (
            "lane.py",
            'from forge_tools.tool import tool\n\n@tool(lane="gpu")\ndef f() -> int:\n    "f"\n',
            " at {}/lane.py:3 with",
        ),
        (
            "undeclared.py",
            f"{PROJECT}\nclass Half(BaseTool):\n    'Half.'\n    name = 'Half'\n    async def _execute(self, context): ...\n",
            "'undeclared.py': Half does not declare its category, parameters. Define them, or begin its name with _",
        ),
        ("nothing.py", "x = 1\n", "nothing has no tool. Decorate a function in it with @tool."),
        ("json.py", PROJECT, "the name json is taken by "),
        ("my-tools.py", PROJECT, "my-tools.py has a name that Python cannot import."),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(name: str, source: str, said: str, project: Path) -> None:
    (project / name).write_text(source)

    with pytest.raises(ConfigurationError) as caught:
        own(name)

    assert said.format(project) in str(caught.value)


def test_a_pyproject_without_tables_of_tools_is_none_of_ours(project: Path) -> None:
    (project / "pyproject.toml").write_text('tool = "forge-tools"\n')

    assert find_project(project) is None


def test_a_stranger_s_pyproject_above_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").write_text("[tool.forge-tools]\ntools = []\n")
    (project / "here").mkdir()
    monkeypatch.chdir(project / "here")
    monkeypatch.setattr("os.getuid", lambda: 4711)
    owner = project.stat().st_uid
    if owner == 0:
        os.chown(project / "pyproject.toml", 4712, -1)
    else:  # only root can give a file away; then everybody here is somebody else
        pytest.skip("only root can give a file to a stranger")

    with pytest.raises(ConfigurationError, match=r"pyproject\.toml names tools to import, but belongs to another user"):
        own()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Bahs", "FORGE_WALLS_OF: There is no tool 'Bahs' (did you mean 'Bash'?)"),
        ("KillShell", "FORGE_WALLS_OF: KillShell has the walls of commands. Name Bash instead"),
        ("category:webb", "There is no category 'webb' (did you mean 'web'?)"),
        ("mcp__files__read", "There is no tool 'mcp__files__read'"),
    ],
)
def test_walls_of_what_there_is_not_are_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        require_walled(Settings.load(walls_of={name: "landlock"}), [Echo()])

    assert said in refused.value.message


def test_walls_of_tools_categories_and_queues_are_taken() -> None:
    walls_of = {"Echo": "plain", "Grep": "landlock", "category:web": "landlock", "queue:low": "landlock"}
    require_walled(Settings.load(walls_of=walls_of), [Echo()])
    require_walled(Settings.load(walls_of={"mcp__files__read": "plain"}, mcp_config="servers.toml"), [])


def test_a_python_that_drops_docstrings_is_refused() -> None:
    load = "from forge_tools.tool import load_tools\nload_tools()"
    ran = subprocess.run([sys.executable, "-OO", "-c", load], capture_output=True, text=True, check=False)

    assert "ConfigurationError: Python was told to drop docstrings" in ran.stderr
    assert "PYTHONOPTIMIZE" in ran.stderr
