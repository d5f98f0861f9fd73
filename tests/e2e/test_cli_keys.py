"""Secrets and their keys through the command line, on real workers."""

from pathlib import Path

from tests.e2e.cli_driver import Cli

SECRET = "correct-horse-battery"


def holding(secret: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_a_folder_has_a_key_of_its_own_and_no_file_of_it_holds_a_secret(cli: Cli) -> None:
    [key] = cli.json("keys", "list")
    assert (key["held_here"], key["retired_at"], key["live"]) == (True, None, 0)
    assert cli.json("keys", "new", "--if-none")["made"] is None

    result = cli.run("run", "Login", "user=ada", f"password={SECRET}")

    assert "ada has no access with [redacted]" in result.stdout + result.stderr
    assert holding(SECRET, cli.home) == []
    assert holding("ada", cli.home) != []


def test_keys_are_rotated_and_forgotten_only_when_nothing_needs_them(cli: Cli) -> None:
    waiting = cli.run(
        "run", "Login", "user=ada", f"password={SECRET}", "--queue", "nowhere", "--background"
    ).stdout.strip()
    [old] = [key["id"] for key in cli.json("keys", "list") if key["retired_at"] is None]

    made = cli.json("keys", "rotate")

    assert made["retired"] == [old]
    assert {key["id"]: key["live"] for key in cli.json("keys", "list")} == {old: 1, made["made"]: 0}
    assert "clients that have been idle" in cli.run("keys", "forget", old).stderr
    assert f"encrypted with key {old}: 1." in " ".join(cli.run("keys", "forget", old, "--now").stderr.split())
    assert "is in use" in cli.run("keys", "forget", made["made"], "--now").stderr
    cli.run("cancel", waiting)
    assert cli.json("keys", "forget", old, "--now") == {"forgotten": old}
    assert [path.stem for path in (cli.home / "keys").iterdir()] == [made["made"]]
    result = cli.run("run", "Login", "user=ada", f"password={SECRET}")
    assert "ada has no access with [redacted]" in result.stdout + result.stderr


def test_a_key_that_is_not_there_is_named(cli: Cli) -> None:
    said = cli.run("keys", "retire", "0123456789abcdef")
    assert said.returncode != 0
    assert "There is no key '0123456789abcdef'" in said.stderr
