"""Digests that tell whether two calls are the same, and nothing else; and the secret that makes them so."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client.links import differences, digest_key, fingerprint, is_comparable
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError

SECRET = b"s" * 32


def made(arguments: dict[str, Any], *, secret: bytes = SECRET, tool: str = "Bash", **context: Any) -> str:
    return fingerprint(secret, ("agent:ann", "k"), tool, arguments, context)


def settings_of(folder: Path, **changes: Any) -> Settings:
    return Settings.load(home=folder, database_url=f"sqlite:///{folder / 'forge.db'}", **changes)


def test_the_order_of_names_makes_no_other_call() -> None:
    assert made({"a": {"x": 1, "y": [2]}, "b": None}) == made({"b": None, "a": {"y": [2], "x": 1}})


@pytest.mark.parametrize("other", [{"a": "1"}, {"a": 1.0}, {"a": True}, {"a": [1]}, {"b": 1}, {}, {"a": 1, "b": None}])
def test_every_other_value_is_another_call(other: dict[str, Any]) -> None:
    assert differences(made({"a": 1}), made(other))


def test_what_differs_is_named_and_nothing_else() -> None:
    mine = made({"same": 1, "mine": 2, "both": 3}, working_dir="/a", dry_run=False)
    theirs = made({"same": 1, "theirs": 2, "both": 4}, tool="Grep", working_dir="/b", dry_run=False)

    assert differences(mine, theirs) == ["tool", "both", "mine", "theirs", "context.working_dir"]


def test_of_many_differences_some_are_named() -> None:
    named = differences(made({f"p{n:02}": 1 for n in range(25)}), made({}))

    assert (len(named), named[-1]) == (11, "and 15 more")


def test_names_that_callers_made_up_are_shown_short_and_clean() -> None:
    assert differences(made({"\x1b[31m" + "x" * 500: 1}), made({})) == ["\\x1b[31m" + "x" * 53 + "..."]


def test_no_value_is_in_a_fingerprint_and_each_key_has_its_own() -> None:
    mine = made({"password": "sesame"}, working_dir="/srv/secret")
    other = fingerprint(SECRET, ("agent:ann", "k2"), "Bash", {"password": "sesame"}, {"working_dir": "/srv/secret"})

    assert "sesame" not in mine
    assert "/srv" not in mine
    assert differences(mine, other) == ["password", "context.working_dir"]


def test_digests_of_two_secrets_are_not_compared() -> None:
    assert is_comparable(made({}), made({"a": 1}))
    assert not is_comparable(made({}), made({}, secret=b"t" * 32))


def test_the_secret_of_the_environment_comes_first(tmp_path: Path) -> None:
    given = digest_key(settings_of(tmp_path, digest_key="0123456789abcdef"))

    assert given == digest_key(Settings.load(database_url="postgresql://db/forge", digest_key="0123456789abcdef"))
    assert list(tmp_path.iterdir()) == []


def test_a_secret_that_could_be_guessed_is_no_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"FORGE_DIGEST_KEY: .*16 characters or more"):
        Settings.load(digest_key="short")


def test_a_server_needs_one_that_all_clients_share() -> None:
    with pytest.raises(ConfigurationError, match="openssl rand -hex 32"):
        digest_key(Settings.load(database_url="postgresql://db/forge"))


def test_of_many_that_need_it_first_all_have_the_same(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    with ThreadPoolExecutor(20) as threads:
        keys = set(threads.map(digest_key, [settings] * 100))

    assert len(keys) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["forge.db.digest-key"]


@pytest.mark.parametrize("content", ["", "short", "x" * 65])
def test_a_file_that_holds_no_secret_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "forge.db.digest-key"
    path.touch(mode=0o600)
    path.write_text(content)

    with pytest.raises(ConfigurationError, match=r"forge\.db\.digest-key holds no digest key"):
        digest_key(settings_of(tmp_path))


@pytest.mark.parametrize("mode", [0o604, 0o660, 0o640])
def test_a_file_that_others_can_read_or_change_is_no_secret(tmp_path: Path, mode: int) -> None:
    digest_key(settings_of(tmp_path))
    path = tmp_path / "forge.db.digest-key"
    path.chmod(mode)

    with pytest.raises(ConfigurationError, match="chmod 600"):
        digest_key(settings_of(tmp_path))


def test_a_folder_that_is_not_there_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read or made: No such file or directory"):
        digest_key(settings_of(tmp_path / "gone"))


def test_what_is_in_the_way_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "forge.db.digest-key").mkdir()

    with pytest.raises(ConfigurationError, match="Is a directory"):
        digest_key(settings_of(tmp_path))
