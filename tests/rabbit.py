"""A real RabbitMQ for the tests that `FORGE_TEST_RABBITMQ=1` asks for: one private node and its port mapper."""

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from amqp import Connection
from amqp.exceptions import AMQPError, NotFound

from tests.server_process import ServerProcess, ServiceMissingError, free_port

NAME, VARIABLE = "RabbitMQ", "FORGE_TEST_RABBITMQ"
ORDER_SECONDS = 30.0
NAMES_SECONDS = 1.5


def is_wanted() -> bool:
    """Whether this run is asked to test on RabbitMQ too: it takes seconds to start, and no wheel brings it."""
    return os.environ.get(VARIABLE) == "1"


class RabbitServer:
    """A RabbitMQ node on loopback ports, with a user of its own; the next `start()` finds its queues again.

    It runs beside an `epmd` of its own, so that nothing is shared with a RabbitMQ of the machine, and nothing is left.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        self._scripts = find_rabbit()
        self._password = secrets.token_hex(16)
        self._port, self._distribution, self._mapper_port = free_port(), free_port(), free_port()
        self.url = f"amqp://forge:{self._password}@127.0.0.1:{self._port}//"
        self.process = ServerProcess("RabbitMQ", folder / "rabbit.log", death_signal=signal.SIGKILL)
        self._mapper = ServerProcess("epmd", folder / "epmd.log", death_signal=signal.SIGKILL)
        self._environment = self._configured()

    def start(self) -> Self:
        if not self._mapper.is_running:
            environment = {"ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(self._mapper_port)}
            self._mapper.start(_with(environment, [found("epmd")]), self._mapper_answers)
        server = [str(self._scripts / "rabbitmq-server"), "-noinput"]
        self.process.start(_with(self._environment, server), self._answers)
        return self

    def stop(self) -> None:
        self.process.stop()
        self._mapper.stop()

    def kill(self) -> None:
        """End the node as a crash would; what it confirmed is on its disk, and so are its queues.

        It writes down the name of a new queue only some 0.5 s later. A queue whose name is lost has no leader for ever,
        and blocks every connection that consumes from it: seen with RabbitMQ 3.10.
        """
        time.sleep(NAMES_SECONDS)
        self.process.kill()

    def purge(self, queues: Iterable[str]) -> None:
        """Forget every message that waits in those queues; those that workers hold stay theirs."""
        with self.connect() as connection:
            for queue in queues:
                with connection.channel() as channel:
                    try:
                        channel.queue_purge(queue)
                    except NotFound:
                        continue

    def cut(self) -> None:
        """Close every connection from the server's side."""
        order = [str(self._scripts / "rabbitmqctl"), "close_all_connections", "cut by a test"]
        done = subprocess.run(
            _with(self._environment, order), capture_output=True, text=True, timeout=ORDER_SECONDS, check=False
        )
        if done.returncode:
            raise OSError(f"RabbitMQ did not cut its connections: {done.stdout[-500:]}{done.stderr[-500:]}")

    def connect(self) -> Connection:
        """Open a connection past everything that kombu would do."""
        connection = Connection(
            f"127.0.0.1:{self._port}", userid="forge", password=self._password, connect_timeout=5, read_timeout=5
        )
        connection.connect()
        return connection

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _configured(self) -> dict[str, str]:
        """Write its configuration; returns the environment in which its programs find that and nothing of the machine's."""
        lines = ("default_user = forge", f"default_pass = {self._password}", "log.console.level = warning")
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "environment").write_text("")
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "HOME": str(self.folder),  # where Erlang keeps its cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RABBITMQ_NODENAME": f"forge-{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "environment"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the server instead of waiting beside it
        }

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except (OSError, AMQPError):
            return False
        return True

    def _mapper_answers(self) -> bool:
        environment = {**os.environ, "ERL_EPMD_PORT": str(self._mapper_port)}
        return (
            subprocess.run([found("epmd"), "-names"], env=environment, capture_output=True, check=False).returncode == 0
        )


def find_rabbit() -> Path:
    """The folder of RabbitMQ's own scripts; those on PATH may be wrappers that insist on a user of the system."""
    for pattern in ("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin", "/opt/rabbitmq*/sbin"):
        for folder in sorted(Path("/").glob(pattern[1:]), reverse=True):
            if (folder / "rabbitmq-server").exists():
                return folder
    return Path(found("rabbitmq-server")).resolve().parent


def found(program: str) -> str:
    """Where that program is."""
    path = shutil.which(program)
    if path is None:
        raise ServiceMissingError(
            f"{VARIABLE}=1 asks for tests on RabbitMQ, and there is no {program}. Install your system's package, such as "
            f"`apt-get install rabbitmq-server`, or unset {VARIABLE}."
        )
    return path


def _with(environment: dict[str, str], argv: list[str]) -> list[str]:
    """The command line that runs `argv` with these variables beside those there are."""
    return [found("env"), *(f"{name}={value}" for name, value in environment.items()), *argv]
