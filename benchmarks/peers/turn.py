"""One peer's turn: its two workers start, its client measures, and nothing is left behind."""

import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.catalogue import Peer
from benchmarks.peers.crew import Crew
from benchmarks.peers.environments import interpreter
from benchmarks.peers.subject import BROKER, READINGS, READY
from benchmarks.processes import ROOT, cpu_seconds
from benchmarks.quiet import Watch

LIMIT_SECONDS = 60.0
"""A client that has not finished by then is ended, and its measure has failed."""

WATCH_SECONDS = 0.1
CALM_SECONDS = 0.4
CALM_SHARE = 0.2
CALM_LIMIT_SECONDS = 8.0
LAST_WORDS = 300

Readings = dict[str, float]


class MeasureError(RuntimeError):
    """A peer could not be measured; the sentence has the last words of its client or workers."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a peer finds its servers, and which processes those are."""

    peer: Peer
    folder: Path
    environment: Mapping[str, str]
    servers: tuple[int, ...]

    def prepare(self) -> None:
        """Create its tables, if it has any.

        Raises:
            MeasureError: with the last words of the command.
        """
        if self.peer.prepare is None:
            return
        try:
            done = subprocess.run(
                self._command(self.peer.prepare),
                cwd=ROOT,
                env=self._variables,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MeasureError(f"its tables were not made within {LIMIT_SECONDS:.0f} s") from error
        if done.returncode:
            raise MeasureError(f"its tables could not be made: {_end(done.stderr)}")

    def crew(self, concurrency: int) -> Crew:
        """Return both worker processes, to be entered with `with`."""
        facts = {"concurrency": concurrency, "broker": self.environment[BROKER]}
        commands = [self._command(command.format_map(facts)) for command in self.peer.commands]
        return Crew(commands, logs=self.folder, environment=self._variables)

    def measure(self, crew: Crew, measure: str, count: int) -> Readings:
        """Let the client run, and read the processor time of everything involved, in microseconds per call.

        Raises:
            MeasureError: with what went wrong.
        """
        with self._client(crew, measure, count) as client:
            _read_until(client, READY)
            wait_until_calm(crew.pids)
            watch = Watch()
            workers_before, servers_before = cpu_seconds(crew.pids), cpu_seconds(self.servers)
            _say_go(client)
            readings = json.loads(_read_until(client, READINGS))
            spent = {
                "client_cpu": readings.pop("client_cpu"),
                "worker_cpu": cpu_seconds(crew.pids) - workers_before,
                "server_cpu": cpu_seconds(self.servers) - servers_before,
            }
            others = watch.others()
        parts = {name: seconds / count * 1e6 for name, seconds in spent.items()}
        return {
            **readings,
            **parts,
            "cpu": sum(parts.values()),
            "rate": count / readings["seconds"],
            "others": others,
        }

    @contextmanager
    def _client(self, crew: Crew, measure: str, count: int) -> Iterator["subprocess.Popen[str]"]:
        log = self.folder / "client.log"
        with log.open("w") as errors:
            client = subprocess.Popen(
                [
                    interpreter(self.peer.environment),
                    *("-m", "benchmarks.peers.driver", self.peer.adapter, measure, str(count)),
                ],
                cwd=ROOT,
                env=self._variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        guard = _Guard(client, crew)
        guard.start()
        try:
            yield client
            client.wait(LIMIT_SECONDS)
        except EOFError as error:
            client.wait(LIMIT_SECONDS)
            raise MeasureError(guard.finding + _last_words([*crew.logs, log])) from error
        finally:
            client.kill()
            client.communicate()
            guard.join()

    def _command(self, command: str) -> list[str]:
        return [interpreter(self.peer.environment), *shlex.split(command)]

    @property
    def _variables(self) -> dict[str, str]:
        return {**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"}


class _Guard(threading.Thread):
    """Ends a client that would wait for ever: its time is up, or a worker of its peer has ended."""

    def __init__(self, client: "subprocess.Popen[str]", crew: Crew) -> None:
        super().__init__(daemon=True)
        self.finding = ""
        self._client = client
        self._crew = crew

    def run(self) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while self._client.poll() is None:
            if time.monotonic() > deadline:
                self._end(f"no result within {LIMIT_SECONDS:.0f} s; ")
            elif self._crew.has_lost_one:
                self._end("a worker ended; ")
            time.sleep(WATCH_SECONDS)

    def _end(self, finding: str) -> None:
        self.finding = self.finding or finding
        self._client.kill()


def wait_until_calm(pids: list[int]) -> None:
    """Wait until these processes have started up, or the rest of what came before: they use little for a while.

    Logs would show it sooner, but a worker that logs each call is slower, and each peer logs it differently.
    """
    deadline = time.monotonic() + CALM_LIMIT_SECONDS
    used = cpu_seconds(pids)
    while time.monotonic() < deadline:
        time.sleep(CALM_SECONDS)
        before, used = used, cpu_seconds(pids)
        if used - before < CALM_SHARE * CALM_SECONDS:
            return


def _say_go(client: "subprocess.Popen[str]") -> None:
    assert client.stdin is not None
    with suppress(BrokenPipeError):  # it is gone, which reading its answer will say better
        client.stdin.write("go\n")
        client.stdin.flush()


def _read_until(client: "subprocess.Popen[str]", start: str) -> str:
    """What follows `start` in the next line that begins so."""
    assert client.stdout is not None
    for line in client.stdout:
        if line.startswith(start):
            return line.removeprefix(start)
    raise EOFError


def _last_words(logs: Sequence[Path]) -> str:
    """The last line of each: that of a traceback is the error."""
    ends = dict.fromkeys(_end(log.read_text(errors="replace")) for log in logs)
    return " | ".join(end for end in ends if end) or "it ended without a word"


def _end(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-LAST_WORDS:] if lines else ""
