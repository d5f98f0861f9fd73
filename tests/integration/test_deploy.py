"""docker-compose.yml and the image: well-formed, closed by default, and every command line runs as a process."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from forge_tools.cli.checks import check_machine
from forge_tools.config import Settings
from tests.e2e.cli_driver import warm_command
from tests.server_process import free_port
from tests.services import PostgresServer, ValkeyServer, find_valkey

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0
PASSWORDS = {"POSTGRES_PASSWORD": "p0stgres", "VALKEY_PASSWORD": "v4lkey"}
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
ONCE = ("migrate", "keys", "audit-key")
WORKERS = {name: service for name, service in OURS.items() if service["command"][0] == "worker"}

# What this file uses of the Compose Specification; a key that is misspelt there is silently useless.
SERVICE_KEYS = {
    *("image", "build", "entrypoint", "command", "environment", "user", "init", "restart", "depends_on", "healthcheck"),
    *("stop_grace_period", "read_only", "tmpfs", "cap_drop", "security_opt", "networks", "volumes", "shm_size"),
    *("logging", "pids_limit", "mem_limit"),
}
HEALTH_KEYS = {"test", "interval", "timeout", "start_period", "retries"}


def interpolate(value: Any, environment: dict[str, str]) -> Any:
    """Do what Compose does with `${NAME:?message}`, `${NAME:-default}`, `${NAME}` and `$$`."""
    if isinstance(value, dict):
        return {name: interpolate(item, environment) for name, item in value.items()}
    if isinstance(value, list):
        return [interpolate(item, environment) for item in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        found = environment.get(match["name"], "")
        if not found and match["kind"] == ":?":
            raise LookupError(f"{match['name']}: {match['rest']}")
        return found or (match["rest"] if match["kind"] == ":-" else "")

    return re.sub(r"\$\$|\$\{(?P<name>\w+)(?:(?P<kind>:[?-])(?P<rest>[^}]*))?\}", replace, value)


def seconds(duration: str) -> float:
    match = re.fullmatch(r"(\d+)s", duration)
    assert match, f"{duration}: write durations in seconds"
    return float(match[1])


def image(instruction: str) -> str:
    """The last line of that instruction in the Dockerfile."""
    return re.findall(rf"^{instruction}\s+(.*)$", DOCKERFILE, re.MULTILINE)[-1]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_says_only_what_compose_understands(name: str) -> None:
    service = SERVICES[name]
    assert set(service) <= SERVICE_KEYS
    assert set(service.get("healthcheck", {})) <= HEALTH_KEYS
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    named = [volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith(".")]
    assert set(named) <= set(COMPOSE["volumes"])
    for other, dependency in service.get("depends_on", {}).items():
        assert dependency["condition"] in {"service_healthy", "service_completed_successfully"}
        assert (dependency["condition"] == "service_healthy") == ("healthcheck" in SERVICES[other])


def test_files_that_compose_and_the_image_name_are_there() -> None:
    for service in SERVICES.values():
        mounts = [volume.split(":")[0] for volume in service.get("volumes", []) if volume.startswith(".")]
        build = [service["build"]["dockerfile"]] if "build" in service else []
        assert all((ROOT / path).exists() for path in [*mounts, *build])
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert all((ROOT / path).exists() for line in copied for path in line.split())


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in ONCE])
def test_every_service_that_stays_has_a_health_check_and_comes_back(name: str) -> None:
    health = SERVICES[name]["healthcheck"]
    assert health["test"][0] in {"CMD", "CMD-SHELL"}
    assert seconds(health["timeout"]) <= seconds(health["interval"])
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_containers_are_closed(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("user") or name in OURS
    assert "ports" not in service
    assert image("USER") == "forge"


def test_the_workspace_holds_nothing_of_the_worker() -> None:
    places = dict(re.findall(r"^(?:ENV| {3}) ([A-Z_]+)=(/\S+)", DOCKERFILE, re.MULTILINE))
    own = {name: Path(place) for name, place in places.items() if name not in {"PATH", "FORGE_WORKSPACE"}}

    assert own.keys() == {"FORGE_HOME", "XDG_CACHE_HOME", "FORGE_ENCRYPTION_KEYS"}
    assert not [name for name, place in own.items() if place.is_relative_to(places["FORGE_WORKSPACE"])]


def test_broker_and_database_have_no_way_out() -> None:
    assert COMPOSE["networks"]["backend"] == {"internal": True}
    assert [SERVICES[name]["networks"] for name in ("valkey", "postgres")] == [["backend"], ["backend"]]


@pytest.mark.parametrize("missing", PASSWORDS)
def test_there_are_no_default_passwords(missing: str) -> None:
    interpolate(SERVICES, PASSWORDS)
    with pytest.raises(LookupError, match=rf"{missing}: set it in .env, see deploy/README.md"):
        interpolate(SERVICES, PASSWORDS | {missing: ""})


@pytest.mark.parametrize("name", ["keys", "audit-key"])
def test_workers_wait_for_the_keys_that_are_made_for_them_and_write_none(name: str) -> None:
    assert OURS[name]["volumes"] == ["keys:/keys"]
    for worker in WORKERS.values():
        assert worker["environment"]["FORGE_AUDIT_KEY"].startswith("/keys/")
        assert {"keys:/keys:ro", "heads:/heads"} <= set(worker["volumes"])
        assert worker["depends_on"][name] == {"condition": "service_completed_successfully"}


def test_the_example_environment_holds_no_secret() -> None:
    lines = (ROOT / "deploy" / ".env.example").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert values == dict.fromkeys(PASSWORDS, "")


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_has_time_to_end_what_it_runs(name: str) -> None:
    assert "FORGE_DRAIN" not in WORKERS[name]["environment"], (
        "the default holds, and the numbers here are those of the default"
    )
    assert seconds(WORKERS[name]["stop_grace_period"]) == Settings().stop_patience


@pytest.mark.parametrize("page", ["deploy/README.md", "docs/celery.md"])
def test_pages_and_doctor_say_how_long_that_is(page: str) -> None:
    drain, patience = f"{Settings().drain:g}", f"{Settings().stop_patience:g}"
    text = (ROOT / page).read_text()
    periods = re.findall(r"(?:stop_grace_period|TimeoutStopSec|terminationGracePeriodSeconds)\W+(\d+)", text)
    assert set(periods) <= {patience}
    assert f"`FORGE_DRAIN` ({drain} s)" in text
    assert f"{patience} s" in text
    [found] = [one for one in check_machine(Settings(broker_url="redis://broker")) if one.subject == "stop"]
    assert f"up to {drain} s to end" in found.said
    assert f"wait {patience} s" in found.said


def test_every_lane_and_queue_has_a_worker() -> None:
    served = set()
    for service in WORKERS.values():
        words = service["command"]
        lane, queues = words[words.index("--lane") + 1], words[words.index("--queues") + 1]
        served |= {(lane, queue) for queue in queues.split(",")}
    assert served == {(lane, queue) for lane in ("async", "process") for queue in ("default", "background")}


def test_the_broker_takes_only_those_who_know_the_password(tmp_path: Path) -> None:
    service = interpolate(SERVICES["valkey"], PASSWORDS)
    port = free_port()
    config = (ROOT / "deploy" / "valkey.conf").read_text().replace("port 6379", f"port {port}")
    (tmp_path / "valkey.conf").write_text(config.replace("/run/valkey", str(tmp_path)).replace("/data", str(tmp_path)))
    (tmp_path / "valkey-server").symlink_to(find_valkey())
    script = service["command"][0].replace("/etc/valkey", str(tmp_path)).replace("/run/valkey", str(tmp_path))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **service["environment"]}
    server = subprocess.Popen([*service["entrypoint"], script], env=environment, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port, password=PASSWORDS["VALKEY_PASSWORD"]) as broker:
            wait_until(lambda: answers(broker), server)
            assert broker.config_get("appendonly") == {"appendonly": "yes"}
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert PASSWORDS["VALKEY_PASSWORD"] not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert (tmp_path / "password.conf").stat().st_mode & 0o777 == 0o600
    finally:
        server.terminate()
        assert server.wait(30) == 0


def answers(broker: redis.Redis) -> bool:
    try:
        return bool(broker.ping())
    except redis.ConnectionError:
        return False


class Containers:
    """Runs a service of ours as a process: the image's entry point, the service's command and environment."""

    def __init__(self, folder: Path, broker_url: str, database_url: str) -> None:
        self._folder = folder
        self._urls = {"FORGE_BROKER_URL": broker_url, "FORGE_DATABASE_URL": database_url}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str) -> subprocess.Popen[bytes]:
        command = [*yaml.safe_load(image("ENTRYPOINT")), *SERVICES[name]["command"]]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    _as_process(command), env=self._environment(name), cwd=self._folder, stdout=log, stderr=log
                )
            )
        return self._started[-1]

    def health(self, name: str) -> int:
        kind, *command = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return self._run(name, command).returncode

    def run(self, name: str) -> "subprocess.CompletedProcess[str]":
        return self._run(name, [*yaml.safe_load(image("ENTRYPOINT")), *SERVICES[name]["command"]])

    def wait_healthy(self, name: str, worker: "subprocess.Popen[bytes]") -> None:
        """Wait until it is; each look is a process of its own, so the first waits for the log."""
        wait_until(lambda: "Worker ready" in self.log(name), worker, lambda: self.log(name))
        wait_until(lambda: self.health(name) == 0, worker, lambda: self.log(name))

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def stop(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _run(self, name: str, command: list[str]) -> "subprocess.CompletedProcess[str]":
        _, _, *words = _as_process(command)
        return warm_command().run(words, cwd=self._folder, env=self._environment(name))

    def _environment(self, name: str) -> dict[str, str]:
        given = interpolate(SERVICES[name]["environment"], PASSWORDS)
        assert set(self._urls) <= set(given)
        inside = {
            "FORGE_HOME": str(self._folder / "home"),
            "FORGE_WORKSPACE": str(self._folder),
            "FORGE_HOSTNAME": name,
            "FORGE_ENCRYPTION_KEYS": str(self._folder),
            "FORGE_AUDIT_KEY": str(self._folder / "audit.key"),
            "FORGE_AUDIT_HEADS": str(self._folder / "audit.heads"),
        }
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        machine = {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}
        return {**machine, "PYTHONPATH": path, **given, **self._urls, **inside}


def _as_process(command: list[str]) -> list[str]:
    assert command[0] == "forge-tools", shlex.join(command)
    return [sys.executable, "-m", "forge_tools.cli", *command[1:]]


@pytest.fixture
def containers(tmp_path: Path, valkey: ValkeyServer, fresh_postgres: str) -> Iterator[Containers]:
    running = Containers(tmp_path, valkey.url, fresh_postgres)
    yield running
    running.stop()


@pytest.mark.timeout(240)
def test_the_command_lines_of_all_containers_run(containers: Containers, postgres: PostgresServer) -> None:
    for name in (*ONCE, *ONCE):  # again is harmless
        done = containers.run(name)
        assert done.returncode == 0, done.stdout + done.stderr
    assert any(containers.health(name) != 0 for name in WORKERS)
    workers = {name: containers.start(name) for name in WORKERS}
    for name, worker in workers.items():
        containers.wait_healthy(name, worker)
    for worker in workers.values():
        worker.terminate()
    for name, worker in workers.items():
        assert worker.wait(60) == 0, containers.log(name)
        assert containers.health(name) != 0


def wait_until(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], explain: Callable[[], str] = lambda: ""
) -> None:
    """Wait until the process serves, but not beyond its end."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert process.poll() is None, f"it ended with {process.returncode}\n{explain()}"
        assert time.monotonic() < deadline, f"not within {START_SECONDS} s\n{explain()}"
        time.sleep(0.05)
