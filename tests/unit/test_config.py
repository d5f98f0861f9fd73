"""Settings: what the environment sets, and what it gets wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from forge_tools.broker.celery_app import celery_app
from forge_tools.config import Settings
from forge_tools.embedded.stack import settings_environment
from forge_tools.environment import misspelt
from forge_tools.errors import ConfigurationError
from forge_tools.project import MAX_SOCKET_PATH, broker_socket
from forge_tools.urls import for_redis


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("FORGE_") or name == "XDG_RUNTIME_DIR"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_without_settings_the_embedded_stack_is_meant() -> None:
    settings = Settings.load()

    assert settings.is_embedded
    assert settings.broker == f"redis+socket://{broker_socket(settings.home)}"
    assert settings.database == f"sqlite:///{settings.home / 'forge.db'}"
    assert settings.audit_heads_file == settings.home / "audit.heads"


def test_what_is_given_goes_before_the_environment_and_keywords_before_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = Settings.load(home=tmp_path, expires=5, lease=20)
    monkeypatch.setenv("FORGE_EXPIRES", "6")
    changed = Settings.load(given, lease=30)

    assert (changed.home, changed.expires, changed.lease) == (tmp_path, 5, 30)
    assert Settings.load(given) is given


def test_the_broker_of_a_home_with_odd_characters_is_found(tmp_path: Path) -> None:
    home = tmp_path / "a b%20?c#d@e:f"
    broker = Settings.load(home=home).broker
    assert Redis.from_url(for_redis(broker)).connection_pool.connection_kwargs["path"] == str(broker_socket(home))
    with celery_app(broker) as app, app.connection_for_write() as connection:
        assert connection.as_uri() == f"redis+socket://{broker_socket(home)}"


def test_the_home_is_where_the_specification_puts_state(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    for state, home in (("/srv/state", "/home/ann"), ("relative", "/home/ann"), ("", "relative")):
        monkeypatch.setenv("XDG_STATE_HOME", state)
        monkeypatch.setenv("HOME", home)
        places.append(str(Settings.load().home.parent))

    assert places == [
        f"{state}/forge-tools" for state in ("/srv/state", "/home/ann/.local/state", "/nonexistent/.local/state")
    ]


def test_a_home_that_is_not_utf8_is_named_with_the_way_out(tmp_path: Path) -> None:
    home = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(
        ConfigurationError, match=re.escape(f"{home}, where the embedded stack keeps its data, is not UTF-8")
    ):
        _ = Settings.load(home=home).database
    assert Settings.load(home=home, database_url="sqlite:///elsewhere.db").database == "sqlite:///elsewhere.db"


def test_a_home_that_is_given_needs_no_file(tmp_path: Path) -> None:
    (tmp_path / ".forge").write_text("garbage")

    assert Settings.load(home="/srv/home").marker is None
    with pytest.raises(ConfigurationError, match=r"\.forge does not hold"):
        Settings.load()


def test_the_environment_is_read_and_arguments_come_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_DATABASE_URL", "postgresql://db/forge")
    monkeypatch.setenv("FORGE_BROKER_URL", "redis://cache:6379/0")
    monkeypatch.setenv("FORGE_MAX_TIMEOUT", "60")

    settings = Settings.load(max_timeout=30, expires=None)

    assert (settings.database, settings.broker) == ("postgresql://db/forge", "redis://cache:6379/0")
    assert (settings.max_timeout, settings.expires, settings.is_embedded) == (30, 600, False)


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("valkey://cache:6379/0", "redis://cache:6379/0"),
        ("valkeys://cache:6380/0", "rediss://cache:6380/0"),
        ("valkey+socket:///run/valkey.sock", "redis+socket:///run/valkey.sock"),
        ("amqp://rabbit//", "amqp://rabbit//"),
    ],
)
def test_valkey_may_be_called_by_its_name(url: str, broker: str) -> None:
    assert Settings.load(broker_url=url).broker == broker


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FORGE_LEASE", "5", "FORGE_LEASE: Input should be greater than or equal to 15"),
        ("FORGE_MAX_TIMEOUT", "soon", "FORGE_MAX_TIMEOUT: Input should be a valid number"),
        ("FORGE_HOSTNAME", "a b", "FORGE_HOSTNAME: String should match pattern"),
        (
            "FORGE_TOOL_MEMORY",
            "100",
            "100 bytes are too few to start Python; give 268,435,456 or more, or 0 for no limit",
        ),
        ("FORGE_TOOL_MEMORY", "9" * 20, "FORGE_TOOL_MEMORY: Input should be less than 9223372036854775808"),
        ("FORGE_TOOL_PROCESSES", "5000000", "FORGE_TOOL_PROCESSES: Input should be less than or equal to 4194304"),
        ("FORGE_TOOLS", "mytools", r"""FORGE_TOOLS is no JSON. Write a JSON list, such as '\["mytools"\]'."""),
        ("FORGE_TOOLS", '"mytools"', r"""FORGE_TOOLS: .*valid tuple. Write a JSON list, such as '\["mytools"\]'."""),
        ("FORGE_ROUTES", '{"x":', """FORGE_ROUTES is no JSON. Write a JSON object, such as '{"Bash": "shells"}'."""),
        ("FORGE_ROUTES", '{"x": "a b"}', "FORGE_ROUTES: x: Queue 'a b' is not a valid name; use up to 205 letters"),
        ("FORGE_BROKER_URL", "sentinel://x", "there is no broker for sentinel://; write"),
        (
            "FORGE_BROKER_URL",
            "http://x",
            "FORGE_BROKER_URL: there is no broker for http://; write redis://, rediss://,",
        ),
        ("FORGE_BROKER_URL", "redis://h/0?db=3", "'db' is no option of a broker here; .* write redis://host:6379/3$"),
        ("FORGE_BROKER_URL", "redis+socket:///x.sock?db=3", "'db' is no .* write redis.socket:///path.virtual_host=3"),
        ("FORGE_BROKER_URL", "valkey://h/0?ssl_cert_reqs=none&foo", "'foo' is no option of a broker here"),
        ("FORGE_WORKSPACE", "/nonexist", "FORGE_WORKSPACE: there is no folder /nonexist"),
        ("FORGE_HEARTBEAT", "4", "lease 15.0s must be at least five heartbeats of 4.0s"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_must_be(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(ConfigurationError, match=message):
        Settings.load()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nope", "FORGE_WORKSPACES is no JSON. Write a JSON object, such as "),
        ("[]", "FORGE_WORKSPACES: Input should be a valid dictionary"),
        ('{"a b": {"roots": ["/x"]}}', "FORGE_WORKSPACES: .*'a b' is not a valid name; use up to 100 letters"),
        ('{"../x": {"roots": ["/x"]}}', "'../x' is not a valid name"),
        ('{"repo": {}}', "FORGE_WORKSPACES: repo > roots: Field required"),
        ('{"repo": {"roots": []}}', "FORGE_WORKSPACES: repo > roots: .*a list of at least one folder"),
        ('{"repo": {"roots": "/x"}}', "a list of at least one folder"),
        ('{"repo": {"roots": [{"path": "/x", "readonly": true}]}}', "repo > roots > 0 > readonly: Extra inputs"),
        ('{"repo": {"roots": ["/x"], "sharde": true}}', "FORGE_WORKSPACES: repo > sharde: Extra inputs"),
        ('{"repo": {"roots": ["/x"], "protected": ["a/b"]}}', "repo > protected > 0: String should match"),
    ],
)
def test_a_workspace_that_cannot_be_is_refused_with_what_it_must_be(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_WORKSPACES", value)

    with pytest.raises(ConfigurationError, match=message):
        Settings.load()


def test_all_wrong_settings_are_named_at_once(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ConfigurationError) as refused:
        Settings.load(workspace=missing, kill_grace="soon", walls_of={"Bash": "brick"})
    first, *others = refused.value.message.split("\n")
    assert first == f"FORGE_WORKSPACE: there is no folder {missing}"
    assert [one.partition(":")[0] for one in others] == ["FORGE_KILL_GRACE", "FORGE_WALLS_OF"]


def test_a_wrong_setting_is_not_quoted_for_it_may_be_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_LEASE", "hunter2")

    with pytest.raises(ConfigurationError) as caught:
        Settings.load()

    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(caught.value.__cause__)


def test_a_variable_that_nothing_reads_is_told_with_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ("FORGE_LEASE", "FORGE_SHELL", "FORGE_SECRET_DIR", "FORGE_TEST_PG_URL", "FORGE_WEATHER_LIMIT")
    for name in ("FORGE_LEESE", "FORGE_ROUTE", *read):
        monkeypatch.setenv(name, "x")

    assert misspelt(Settings.model_fields, ["FORGE_SHELL"]) == {
        "FORGE_LEESE": "FORGE_LEASE",
        "FORGE_ROUTE": "FORGE_ROUTES",
    }


def test_routes_of_a_tool_come_before_those_of_its_category() -> None:
    settings = Settings.load(routes={"Bash": "shells", "file": "disks"})

    queues = [settings.queue_for(*each) for each in (("Bash", "execution"), ("Read", "file"), ("Fetch", "web"))]

    assert queues == ["shells", "disks", "default"]


def test_background_work_may_wait_longer() -> None:
    settings = Settings.load()

    assert (settings.expiry_for("default"), settings.expiry_for("background")) == (600, 86_400)


def test_hosts_that_share_a_home_keep_their_shells_apart() -> None:
    one, other = (Settings.load(home="forge", hostname=name).shells_folder for name in ("a", ".."))

    assert (one, other) == (Path.cwd() / "forge/shells-a", Path.cwd() / "forge/shells-..")
    assert Settings.load(shells="/srv/shells").shells_folder == Path("/srv/shells")


def test_a_folder_of_artifacts_is_named_by_its_whole_path() -> None:
    assert Settings.load(artifact_dir="/srv/artifacts").artifact_dir == Path("/srv/artifacts")
    with pytest.raises(ConfigurationError, match=r"FORGE_ARTIFACT_DIR: .*an absolute path, not artifacts"):
        Settings.load(artifact_dir="artifacts")


@pytest.mark.parametrize(
    "name", ["FORGE_HOME", "FORGE_SHELLS", "FORGE_AUDIT_KEY", "FORGE_MCP_CONFIG", "FORGE_LEASE", "FORGE_ROUTES"]
)
def test_an_empty_variable_counts_as_unset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of FORGE_HOME: otherwise keys and database would be in the workspace, where tools read them."""
    unset = Settings.load()
    monkeypatch.setenv(name, "")

    assert (settings := Settings.load()) == unset
    assert settings.marker is not None


def test_a_socket_path_that_is_too_long_moves_to_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = Path("/srv/home"), tmp_path / ("d" * 100)

    assert broker_socket(short) == short / "valkey.sock"
    moved = broker_socket(long)
    assert len(os.fsencode(moved)) <= MAX_SOCKET_PATH
    assert f"forge-tools-{os.getuid()}" in moved.parts
    assert broker_socket(long.parent / ("e" * 100)) != moved
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert broker_socket(long).parent == Path("/run/user/7")


def test_a_temporary_folder_that_is_itself_too_deep_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    assert len(str(broker_socket(deep / "home"))) <= MAX_SOCKET_PATH


@pytest.mark.parametrize("server", ["database", "broker"])
def test_a_password_may_come_from_a_file(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("a/b@c\n")
    monkeypatch.setenv(
        f"FORGE_{server.upper()}_URL", "redis://host/0" if server == "broker" else "postgresql://u@host/db"
    )
    monkeypatch.setenv(f"FORGE_{server.upper()}_PASSWORD_FILE", str(tmp_path / "password"))

    settings = Settings.load()

    assert getattr(settings, server).partition("://")[2].startswith((":a%2Fb%40c@host", "u:a%2Fb%40c@host"))
    assert "a/b@c" not in repr(settings)
    assert "a%2Fb" not in str(settings_environment(settings))  # workers are told the file


@pytest.mark.parametrize(
    ("url", "content", "message"),
    [
        ("redis://host", None, "No such file or directory"),
        ("redis://host", "\n", "a file with one"),
        ("", "secret", "a URL without a password"),
        ("redis://:first@host", "secret", "has a password already"),
    ],
)
def test_a_file_of_a_password_that_is_of_no_use_is_refused_by_name(
    url: str, content: str | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "password").write_text(content)

    with pytest.raises(ConfigurationError, match=f"FORGE_BROKER_PASSWORD_FILE .*password: .*{message}") as refused:
        Settings.load(broker_url=url, broker_password_file=tmp_path / "password")
    assert not {"first", "secret"} & set(str(refused.value).split())


@pytest.mark.parametrize("name", ["FORGE_BROKER_URL", "FORGE_DATABASE_URL"])
def test_a_url_with_half_a_password_for_a_port_is_refused_without_a_word_of_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "redis://u:hush/tail@host")
    with pytest.raises(ConfigurationError, match=f"{name}: .*cannot be parsed") as refused:
        Settings.load()
    assert "hush" not in str(refused.value)
    assert "tail" not in str(refused.value)


def test_the_name_of_a_machine_that_cannot_be_one_of_a_queue_is_refused() -> None:
    named = "import socket; socket.gethostname = lambda: 'my host'\n"
    load = "from forge_tools.config import Settings; Settings.load()"
    done = subprocess.run([sys.executable, "-c", named + load], capture_output=True, text=True, check=False)
    assert "ConfigurationError: FORGE_HOSTNAME" in done.stderr


def test_heads_of_the_audit_chain_have_a_file_for_each_database_unless_one_is_named() -> None:
    urls = ("postgresql://db/one", "postgresql://db/other")
    files = [Settings.load(database_url=url).audit_heads_file for url in urls]
    assert len(set(files)) == 2
    assert {file.parent for file in files} == {Settings.load().home.parent}
    assert Settings.load(audit_heads="/srv/heads", database_url=urls[0]).audit_heads_file == Path("/srv/heads")
