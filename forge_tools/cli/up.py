"""`forge-tools up`: the one-machine stack, in the foreground."""

import asyncio
import os
import pickle
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Annotated

from rich.table import Column, Table
from rich.text import Text
from typer import Option

from forge_tools import programs
from forge_tools.cli.face import App, Face
from forge_tools.cli.parameters import example_command
from forge_tools.cli.services import with_store
from forge_tools.cli.text import short_path, took
from forge_tools.cli.worker import require_own_workers
from forge_tools.config import Settings, marker_of
from forge_tools.embedded.stack import EmbeddedStack, StackStatus, forget
from forge_tools.embedded.supervision import how_ended
from forge_tools.environment import given_secrets
from forge_tools.errors import ConfigurationError, ForgeError, StackError
from forge_tools.model.execution import ExecutionStatus
from forge_tools.model.history import ExecutionRecord
from forge_tools.model.places import ShellStatus
from forge_tools.model.tools import COMMANDS, ToolCategory, ToolSpec
from forge_tools.sandbox.configured import commands_of, reach_of, user_of
from forge_tools.sandbox.processes.launcher import prepare_child
from forge_tools.sandbox.processes.trees import descendants
from forge_tools.sandbox.shells.host import survey
from forge_tools.sandbox.walls.privileges import harden
from forge_tools.sandbox.walls.probe import given
from forge_tools.secrets.detection import SecretSource
from forge_tools.signals import not_ignored
from forge_tools.storage import Store, open_store
from forge_tools.tool import load_project, load_settings, require_walled

SHOWN_SHELLS = 5
SHOWN_CALLS = 20
MOST_RUNNING = 500

START_SECONDS = 45.0
POLL_SECONDS = 0.1

app = App()


@app.command()
def up(
    face: Face,
    tools: Annotated[list[str] | None, Option("--tools", metavar="MODULE|FILE", help="Offer these tools too.")] = None,
    concurrency: Annotated[
        int | None, Option(min=1, max=1000, help="Processes of each process lane, by default one per CPU.")
    ] = None,
    forgets: Annotated[
        bool, Option("--forget", help="Only remove the stack of this folder: .forge, and all its history and keys.")
    ] = False,
) -> None:
    """Run broker, database and workers on this machine until Ctrl-C or SIGTERM.

    Stopping leaves no process except shells that tools started in the background; it names them.
    """
    harden()
    programs.leave_threads()  # the fork that loads modules of tools would wait for threads of theirs
    given()  # now, since it tries walls in forks, which are only safe while there are no threads
    settings = Settings.load()
    if forgets:
        _forget(face, settings)
        return
    user_of(settings, reach_of(settings))  # errors end here, not in three logs
    commands_of(settings)
    references = tuple(tools or ())
    if face.is_json:
        face.claim_output()  # modules may print while they are imported
    own = _tried(settings, references)  # as above
    stack = AnnouncedStack(face, settings, references, concurrency, own)
    stack.run(stack.announce)


def _tried(settings: Settings, references: tuple[str, ...]) -> list[ToolSpec]:
    """Load the user's tools in a fork: whatever their modules do to their process is done to no process of the stack."""
    # A pipe could fill up: nobody reads before the fork has ended.
    with os.fdopen(os.memfd_create("tools"), "w+b") as answer:
        ours, child = os.getpid(), os.fork()
        if not child:
            prepare_child(ours)
            programs.run(lambda: _try(settings, references, answer))
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answer.seek(0)
        if ended or not (said := answer.read()):
            names = ", ".join((*settings.tools, *references))
            raise ConfigurationError(
                f"Loading your tools ({names}) ended the process that tried it ({how_ended(ended)}). "
                "What a module does while it is imported must not end, or crash, its process."
            )
    found: list[ToolSpec] | BaseException = pickle.loads(said)  # noqa: S301  our own fork wrote it
    if isinstance(found, BaseException):
        raise found
    return found


def _try(settings: Settings, references: tuple[str, ...], answer: IO[bytes]) -> int:
    found: list[ToolSpec] | BaseException
    try:
        own = load_project(settings, references)
        load_settings(own, SecretSource(given_secrets(), settings.secrets_dir))
        require_walled(settings, own)
        found = [tool.spec for tool in own]
    except BaseException as error:  # noqa: BLE001  raised again where errors are caught
        error.add_note("".join(traceback.format_exception(error)))  # pickling drops the traceback
        found = error
    answer.write(pickle.dumps(found))
    answer.flush()
    return 0


def _forget(face: Face, settings: Settings) -> None:
    if going_on := running_shells(settings):
        raise StackError(
            f"Shells that tools started in the background still run: {going_on}. End them with the tool KillShell, in a running "
            "stack, or wait until they have ended."
        )
    removed = forget(settings)
    said = f"Removed {' and '.join(map(str, removed))}." if removed else "This folder has no stack to forget."
    face.tell({"removed": removed}, said)


def running_shells(settings: Settings) -> str:
    ids = [one.id for one in survey(settings.shells_folder) if one.status is ShellStatus.RUNNING]
    return f"{', '.join(ids[:SHOWN_SHELLS])}{', ...' if len(ids) > SHOWN_SHELLS else ''}"


class AnnouncedStack(EmbeddedStack):
    def __init__(
        self, face: Face, settings: Settings, tools: tuple[str, ...], concurrency: int | None, own: Sequence[ToolSpec]
    ) -> None:
        require_own_workers()
        super().__init__(settings, tools=tools, concurrency=concurrency)
        self._own = own
        self._face = face
        self._is_up = False

    def announce(self, status: StackStatus) -> None:
        """Report what runs and what to try; then, from a thread, when it is ready."""
        self._is_up = True
        if self._face.is_json:
            self._face.document(asdict(status))
        else:
            _print_stack(self._face, self.settings, status)
            self.suggest(self._own)
            self._face.say(f"\n{self._way_out} stops everything. Starting the workers ...")
        threading.Thread(target=self.await_workers, name="forge-ready", daemon=True).start()

    @property
    def _way_out(self) -> str:
        return "Ctrl-C" if not_ignored(signal.SIGINT) else f"kill {os.getpid()}"

    def suggest(self, own: Sequence[ToolSpec]) -> None:
        """Print commands to copy, the first of them for a tool of the user."""
        program = command_line(self.settings)
        runs = [example_command(spec) for spec in own[:1]] or [
            "run Bash command='uname -a'",
            "run Grep pattern=TODO output_mode=count",
        ]
        self._face.say("\nTry, in another terminal:")
        for line in (*runs, "history", "tools", "doctor"):
            self._face.say(f"  {program} {line}", style="cyan")

    def stop(self) -> None:
        if not self._is_up:
            super().stop()
            return
        self._is_up = False
        names = ", ".join(process.name for process in self.status().processes if process.state != "stopped")
        pids = {one.pid for one in self.workers}
        self._face.note(f"\nStopping {names} ...")
        started = time.monotonic()
        telling = threading.Thread(target=self._tell_what_runs, args=(pids,), name="forge-cut", daemon=True)
        with suppress(RuntimeError):  # no more threads: the stop matters more
            telling.start()
        super().stop()
        left = ", ".join(str(process.pid) for process in descendants(os.getpid()))
        outcome = f"still running: {left}" if left else "no process is left"
        self._face.note(f"Stopped in {took((time.monotonic() - started) * 1000)}; {outcome}.")
        if going_on := running_shells(self.settings):
            self._face.note(
                f"Shells that tools started in the background still run: {going_on}. The next `forge-tools up` here takes them over; "
                "otherwise they end within a day."
            )

    def _tell_what_runs(self, pids: Collection[int | None]) -> None:
        """Name the calls that run on these workers. This runs in a thread: a stop does not wait for a database."""
        settings = self.settings

        async def read(store: Store) -> list[ExecutionRecord]:
            known = await store.workers.list(seen_within=settings.lease)
            instances = {one.id for one in known if one.pid in pids and one.hostname == settings.hostname}
            page = await store.history.list(status=ExecutionStatus.RUNNING, limit=MOST_RUNNING)
            return [one for one in page if one.worker_id in instances]

        with suppress(ForgeError):
            if running := with_store(read, settings):
                shown = "".join(f"\n  {one.id} {one.tool}" for one in running[:SHOWN_CALLS])
                more = f"\n  and {len(running) - SHOWN_CALLS} more" if len(running) > SHOWN_CALLS else ""
                said = f"These calls are stopped in {settings.drain:g} s unless they end before; a second signal stops them now:"
                self._face.note(f"{said}{shown}{more}", style="yellow")

    def await_workers(self) -> None:
        """Wait in a thread until the workers are ready, or the stack stops."""
        try:
            is_ready = asyncio.run(until_ready(self.settings, self.status, is_given_up=lambda: not self._is_up))
        except ForgeError as error:
            if self._is_up:
                self._face.note(str(error), style="yellow")
            return
        if is_ready and self._is_up:
            self.declare_ready()
            said = f"Ready. Run a tool in another terminal, as above; {self._way_out} stops everything."
            self._face.note(said, style="green")


def _print_stack(face: Face, settings: Settings, status: StackStatus) -> None:
    face.say("forge-tools is up", style="bold")
    face.say()
    face.out.print(_overview(status))
    if settings.workspace.resolve() != Path.cwd():
        face.say(f"\nTools work in {settings.workspace}.")
    if settings.walls is settings.walls_minimum is None and given().tier != "landlock":
        face.say(f"\nTools that ask for walls run without them here ({given()}).")
    if given().no_namespaces and settings.walls_for(COMMANDS, ToolCategory.EXECUTION) is None:
        tier, _ = commands_of(settings)
        behind = "without walls" if tier == "plain" else f"behind {tier.capitalize()}"
        face.say(f"\nCommands and MCP servers run {behind} here, not in namespaces ({given().no_namespaces}).")


def _overview(status: StackStatus) -> Table:
    def at(path: str) -> Text:
        """Make a path in the home relative to it: the last line says where the home is."""
        inside = Path(path)
        return Text(str(inside.relative_to(status.home)) if inside.is_relative_to(status.home) else short_path(path))

    dim = partial(Column, style="dim", no_wrap=True)
    made = Table.grid(dim(), Column(no_wrap=True), dim(justify="right"), Column(overflow="fold"), padding=(0, 2))
    for process in status.processes:
        is_broker = process.name == "valkey"
        where = at(status.broker.partition("://")[2] if is_broker else str(process.log))
        pid = f"pid {process.pid}" if process.pid else process.state
        made.add_row("broker" if is_broker else "worker", process.name, pid, where)
    if not any(process.name == "valkey" for process in status.processes):
        made.add_row("broker", "yours", "", Text(status.broker))
    scheme, _, rest = status.database.partition("://")
    is_file = scheme.startswith("sqlite")
    kind = "SQLite" if is_file else scheme.partition("+")[0]
    made.add_row("database", kind, "", at(rest.removeprefix("/")) if is_file else Text(status.database))
    made.add_row("home", "", "", Text(short_path(str(status.home))))
    return made


def command_line(settings: Settings) -> str:
    """Return the prefix to type before a command, with the folder of the stack if it is not the default."""
    program = _program()
    if settings.home.resolve() == marker_of(Path.cwd()).home.resolve():
        return program
    return f"FORGE_HOME={shlex.quote(str(settings.home.resolve()))} {program}"


def _program() -> str:
    script = Path(sys.executable).parent / "forge-tools"
    on_path = shutil.which("forge-tools")
    if on_path and (not script.exists() or Path(on_path).samefile(script)):  # else it is of another installation
        return "forge-tools"
    if script.exists():
        return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here := Path.cwd()) else script))
    return f"{shlex.quote(sys.executable)} -m forge_tools.cli"


async def until_ready(
    settings: Settings,
    status: Callable[[], StackStatus],
    *,
    timeout: float = START_SECONDS,
    is_given_up: Callable[[], bool],
) -> bool:
    """Wait until every worker process of the stack claims calls; False if `is_given_up` says so first."""
    async with await open_store(settings.database, connect_timeout=settings.connect_timeout) as store:
        deadline = asyncio.get_running_loop().time() + timeout
        while not is_given_up():
            known = await store.workers.list(seen_within=settings.lease)
            # Before its first heartbeat a worker is only known: it does not claim calls yet.
            live = {worker.pid for worker in known if worker.beat and not worker.stopped_at}
            missing = [one for one in status().processes if one.name != "valkey" and one.pid not in live]
            if not missing:
                return True
            if asyncio.get_running_loop().time() > deadline:
                late = ", ".join(f"{one.name} ({one.state}, its log is {one.log})" for one in missing)
                raise StackError(f"Not ready after {timeout:.0f} s: {late}. The other workers serve what they can.")
            await asyncio.sleep(POLL_SECONDS)
    return False
