"""The file that names the servers."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from forge_tools.errors import ConfigurationError
from forge_tools.mcp.hosted.configuration import Server, read_servers


def write(folder: Path, servers: Any) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_servers_are_read_as_other_clients_write_them(tmp_path: Path) -> None:
    here = {"command": "npx", "args": ["-y", "some-server"], "env": {"TOKEN": "t"}}
    there = {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer t"}}

    first, second = read_servers(write(tmp_path, {"here": here, "there": there}))

    assert (first.name, first.command, first.args, first.env) == ("here", "npx", ("-y", "some-server"), {"TOKEN": "t"})
    assert first.cwd == tmp_path
    assert (second.url, second.headers) == ("https://example.com/mcp", {"Authorization": "Bearer t"})


def test_variables_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    declared = {"command": "${MISSING:-npx}", "env": {"TOKEN": "${MY_TOKEN}"}, "args": ["$HOME", "${MISSING:-}"]}

    (server,) = read_servers(write(tmp_path, {"s": declared}))

    assert (server.command, server.env, server.args) == ("npx", {"TOKEN": "secret"}, ("$HOME", ""))
    assert "secret" not in repr(server)


def test_a_disabled_server_is_left_out(tmp_path: Path) -> None:
    assert read_servers(write(tmp_path, {"s": {"command": "x", "disabled": True}})) == []


def test_a_setting_that_nobody_knows_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_servers(write(tmp_path, {"s": {"command": "x", "arg": ["-y"]}}))

    assert caplog.records[0].settings == ["arg"]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({}, 'either a "command" to start, or a "url"'),
        ({"command": "x", "url": "http://y"}, 'either a "command" to start, or a "url"'),
        ({"url": "http://y", "type": "sse"}, 'the type "sse" is not one of a server with a url'),
        ({"url": "ftp://y"}, "must start with http:// or https://"),
        ({"command": "x", "args": "-y"}, "args: Input should be a valid tuple"),
        ({"command": "x", "args": ["a\0b"]}, "args.0: String should match pattern"),
        ({"command": "x", "env": {"A=B": "c"}}, "String should match pattern"),
        ({"command": "${NOBODY_SET_THIS}"}, "${NOBODY_SET_THIS} is not set. Set it, or write"),
        ({"command": "x", "mounts": ["/no/such/folder:ro"]}, "mounts: /no/such/folder does not exist on this host"),
        ({"command": "x", "mounts": ["~nobody-here/x:ro"]}, "does not exist on this host"),
        ({"command": "x", "mounts": ["/tmp"]}, "mounts.0: String should match pattern"),
        ({"command": "x", "network": ["https://y"]}, "'https://y' is no host; write api.example.com"),
        (
            {"command": "x", "network": "api.example.com"},
            "network: write true, false, or a list of the hosts",
        ),
        ({"command": "x", "walls": "none"}, "walls: Input should be 'plain', 'landlock' or 'namespace'"),
        (
            {"command": "x", "walls": "plain", "network": False},
            '"walls": "plain" cannot keep it to the network none; leave',
        ),
        (
            {"command": "x", "walls": "landlock", "network": ["a.test"]},
            '"walls": "landlock" cannot keep it to the network',
        ),
        (
            {"command": "x", "walls": "plain", "mounts": ["/:ro"]},
            'mounts need walls, which "walls": "plain" does without',
        ),
        ({"url": "http://y", "network": False}, "walls, network and mounts are of programs; this one runs elsewhere"),
        ("npx", "it must be an object"),
    ],
)
def test_a_server_that_cannot_be_is_refused_by_name(tmp_path: Path, declared: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_servers(write(tmp_path, {"mine": declared}))

    assert 'mcp.json, server "mine"' in str(refused.value)
    assert said in str(refused.value)


def test_programs_whose_entries_name_no_network_have_the_one_that_is_set(tmp_path: Path) -> None:
    here, there = {"command": "x"}, {"url": "http://y"}
    path = write(tmp_path, {"set": here, "own": {**here, "network": True}, "there": there})

    assert [one.egress for one in read_servers(path, network="a.test")] == ["a.test", "host", "host"]
    assert [one.egress for one in read_servers(path)] == ["host"] * 3
    for tier in ("plain", "landlock"):
        walled = write(tmp_path, {"mine": {**here, "walls": tier}})
        with pytest.raises(
            ConfigurationError, match=r"cannot keep it to the network a\.test; .* FORGE_EGRESS_OF sets that"
        ):
            read_servers(walled, network="a.test")
        assert read_servers(walled, network="host")[0].walls == tier


def test_an_entry_that_does_without_walls_is_refused_where_there_is_a_minimum(tmp_path: Path) -> None:
    path = write(tmp_path, {"mine": {"command": "x", "walls": "plain"}})

    with pytest.raises(
        ConfigurationError, match='server "mine": "walls": "plain" is less than FORGE_WALLS_MINIMUM=landlock'
    ):
        read_servers(path, minimum="landlock")


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is no JSON"), ("[]", "has no servers"), ('{"mcpServers": 3}', "has no servers")]
)
def test_a_file_without_servers_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match=said):
        read_servers(path)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_servers(tmp_path / "missing.json")


def test_a_server_made_in_code_needs_no_file() -> None:
    assert Server(name="s", command="x").start_timeout == 20
