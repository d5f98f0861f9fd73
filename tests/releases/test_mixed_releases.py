"""The newest release and this tree at work on one database and one broker, as while hosts are upgraded one by one.

The wheels of all releases lie beside this file; `make release-wheel` builds the one of this version. Children of a worker are forked from it,
so frames never pass between releases: what comes of them does, as reports, artifacts and results.
"""

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forge_tools import __version__
from tests.fleet import ROOT, copy_packages, warm_worker
from tests.releases.release import HERE, Agent, Release
from tests.warm import WarmInterpreter

MOST_BYTES = 1_200_000
"""Of one wheel: it is in every clone for ever."""
ALONE, TOGETHER = 10, 180
ALONE_SECONDS = 8.0
"""Several times what lone calls take, and less than if each had to be found by a worker that was not told of it."""
TOOLS = {"async": ("Greet", 1.0), "process": ("GreetInProcess", 0.1)}
"""The tool of each lane, and the most seconds that one of many calls takes in it."""
IMPORTS = ("workers.program", "celery.bin.worker", "celery.apps.worker", "celery.worker.consumer", "forge_tools.client")
"""What the programs of a release import, for the most part; named as in the newest release."""

INCOMPATIBLE = {
    "messages have another form": ("forge_tools/broker/message.py", "[[wakeups]", "[[[one[::-1] for one in wakeups]]"),
    "notifications have another form": ("forge_tools/broker/message.py", r'REPLY_MARK = b"\0"', r'REPLY_MARK = b"\1"'),
    "a new column has to be filled": (
        "forge_tools/storage/tables.py", 'Column("final", Flag', 'Column("system", Text, nullable=False), Column("final", Flag',
    ),
    "a status has another name": ("forge_tools/model/execution.py", 'SUCCEEDED = "succeeded"', 'SUCCEEDED = "done"'),
    "results are encoded in another way": ("forge_tools/storage/rows.py", "else decode_json(value)", 'else decode_json(value)["value"]'),
}  # fmt: skip
"""Changes of which each keeps a release from working with the one before: the file, what stands there, what would."""


@pytest.fixture(scope="module")
def kept() -> Path:
    """The wheel of the newest release."""
    return max(HERE.glob("*.whl"), key=lambda wheel: tuple(map(int, version_of(wheel).split("."))))


@pytest.fixture(scope="module")
def before(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmInterpreter]:
    """An interpreter with the newest release."""
    folder = tmp_path_factory.mktemp("before")
    with zipfile.ZipFile(kept) as wheel:
        wheel.extractall(folder)
    interpreter = WarmInterpreter(*IMPORTS, path=folder)
    yield interpreter
    interpreter.close()


def version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def test_the_wheel_of_this_version_is_kept_and_complete() -> None:
    [wheel] = HERE.glob(f"forge_tools-{__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.testzip() is None
        assert f"\nVersion: {__version__}\n" in archive.read(f"forge_tools-{__version__}.dist-info/METADATA").decode()
        compile(archive.read("forge_tools/__init__.py"), "forge_tools/__init__.py", "exec")
    inside = ("__init__.py", "py.typed", "storage/sql/postgresql_statements.sql", "storage/migrations/env.py")
    assert {"workers/__main__.py", *(f"forge_tools/{name}" for name in inside)} <= names
    assert {name.split("/")[0] for name in names} == {"forge_tools", "workers", f"forge_tools-{__version__}.dist-info"}
    assert f"\n## {__version__} (" in (ROOT / "CHANGELOG.md").read_text()


def test_wheels_of_releases_stay_small() -> None:
    assert {wheel.name: wheel.stat().st_size for wheel in HERE.glob("*.whl") if wheel.stat().st_size > MOST_BYTES} == {}


@pytest.mark.parametrize(
    ("who_calls", "who_is_first", "database", "lane"),
    [
        ("before", "before", "sqlite_url", "process"),
        ("before", "this", "fresh_postgres", "async"),
        ("this", "before", "fresh_postgres", "process"),
        ("this", "this", "sqlite_url", "async"),
    ],
)
def test_two_releases_work_together_and_one_goes_on_where_the_other_is_killed(
    who_calls: str,
    who_is_first: str,
    database: str,
    lane: str,
    before: WarmInterpreter,
    tmp_path: Path,
    valkey_url: str,
    request: pytest.FixtureRequest,
) -> None:
    servers = (request.getfixturevalue(database), valkey_url)
    releases = {"before": Release(before, tmp_path, *servers), "this": Release(warm_worker(), tmp_path, *servers)}
    caller, first = releases[who_calls], releases.pop(who_is_first)
    [second] = releases.values()
    first.prepare()

    with ExitStack() as running:
        killed = running.enter_context(first.work(lane, "first"))
        agent = running.enter_context(caller.agent(TOOLS[lane][0]))
        agent.call("alone", "early", ALONE)
        agent.wait_for(ALONE, ALONE_SECONDS)
        running.enter_context(second.work(lane, "second"))
        agent.call("together", "many", TOGETHER, TOOLS[lane][1])
        agent.wait_for(ALONE + TOGETHER // 3)
        killed.kill()
        agent.wait_for(ALONE + TOGETHER)
        agent.call("alone", "late", ALONE)
        agent.wait_for(ALONE + TOGETHER + ALONE, ALONE_SECONDS)
        answers = agent.finish()

    check(answers, {"early": ALONE, "many": TOGETHER, "late": ALONE}, tmp_path)


@pytest.mark.parametrize("change", INCOMPATIBLE)
def test_what_would_keep_them_from_it_is_noticed(
    change: str, before: WarmInterpreter, tmp_path: Path, valkey_url: str, sqlite_url: str
) -> None:
    packages = tmp_path / "packages"
    copy_packages(packages)
    file, there, instead = INCOMPATIBLE[change]
    text = (packages / file).read_text()
    assert there in text
    (packages / file).write_text(text.replace(there, instead))
    with ExitStack() as running:
        interpreter = WarmInterpreter("forge_tools.client", path=packages)
        running.callback(interpreter.close)
        changed, old = (Release(one, tmp_path, sqlite_url, valkey_url) for one in (interpreter, before))
        changed.prepare()
        running.enter_context(old.work("async", "old"))
        agent = running.enter_context(changed.agent("Greet"))
        agent.call("alone", "early", ALONE)

        with pytest.raises(AssertionError):
            finished(agent, tmp_path)


def finished(agent: Agent, home: Path) -> None:
    agent.wait_for(ALONE, ALONE_SECONDS)
    check(agent.finish(), {"early": ALONE}, home)


def check(answers: list[Any], asked: dict[str, int], home: Path) -> None:
    """Require that each call was answered rightly and once, and that all of them are in the history, with what they reported."""
    *greetings, history = answers
    names = [(name, number) for name, count in asked.items() for number in range(count)]
    expected = [f"hello {name} {number}, 3 x {1 if number % 10 else 100}" for name, number in names]
    assert sorted(greetings) == sorted(expected)
    assert history == [{"succeeded": len(names)}, ["about to greet early 0"]]
    assert not any("not one of ours" in log.read_text() for log in home.glob("*.log"))


@pytest.mark.parametrize("who_leaves", ["before", "this"])
def test_shells_and_the_index_of_a_host_are_those_of_both(
    who_leaves: str, before: WarmInterpreter, tmp_path: Path
) -> None:
    releases = {"before": before, "this": warm_worker()}
    leaving = releases.pop(who_leaves)
    [finding] = releases.values()
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "greeting.py").write_text("def greet(): ...\n\n\ngreet()\n")

    shell, *references = used(leaving, tmp_path).splitlines()
    output, *rest = used(finding, tmp_path, shell).splitlines()

    assert (output, references != []) == ("ready", True)
    assert f"Stopped {shell} " in rest[1]
    assert rest[-len(references) :] == references


def used(release: WarmInterpreter, *words: object) -> str:
    done = release.run(["-c", (HERE / "files.py").read_text(), *map(str, words)], cwd=HERE, env={})
    assert done.returncode == 0, done.stderr
    return done.stdout
