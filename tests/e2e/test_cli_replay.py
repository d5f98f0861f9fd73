"""Idempotency keys and replays on the command line, on real workers."""

import signal

import pytest

from tests.e2e.cli_driver import Cli
from tests.waiting import wait_until


def test_the_same_call_under_the_same_key_runs_once(cli: Cli) -> None:
    words = ("run", "Bash", "command=echo once >> effects; date +%N", "--idempotency-key", "once")
    first, again = cli.run(*words), cli.run(*words)

    assert (first.returncode, again.returncode) == (0, 0)
    assert first.stdout == again.stdout
    assert "made before" not in first.stderr
    assert "This call was made before" in again.stderr
    assert (cli.folder / "effects").read_text() == "once\n"


def test_another_call_under_that_key_is_refused_by_name(cli: Cli) -> None:
    held = cli.json("run", "Add", "a=1", "b=2", "--idempotency-key", "sum")
    refused = cli.json("run", "Add", "a=1", "b=3", "--idempotency-key", "sum", code=1)
    elsewhere = cli.json("run", "Add", "a=1", "b=3", "--idempotency-key", "sum", "--idempotency-scope", "team")

    assert refused["error_code"] == "IDEMPOTENCY_CONFLICT"
    assert refused["metadata"]["holder"] == held["id"]
    assert "differs in: b." in refused["error"]
    assert elsewhere["output"] == 4


def test_a_repeat_in_the_background_is_the_id_or_the_result(cli: Cli) -> None:
    command = "until [ -e may-end ]; do sleep 0.05; done; echo done"
    words = ("run", "Bash", f"command={command}", "--idempotency-key", "later", "--background")
    first, again = cli.json(*words), cli.json(*words)
    assert first["id"] == again["id"]
    (cli.folder / "may-end").touch()
    assert cli.json("show", first["id"], "--wait")["idempotency_key"] == "later"
    assert cli.json(*words)["output"] == "done\n"


def test_an_interrupt_leaves_a_call_with_a_key_to_go_on(cli: Cli) -> None:
    command = "sleep 0.5; touch began; until [ -e go-on ]; do sleep 0.05; done; echo done"
    words = ("run", "Bash", f"command={command}", "--idempotency-key", "interrupted")
    with cli.start(*words) as process:
        wait_until((cli.folder / "began").exists, 30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    (cli.folder / "go-on").touch()

    assert process.returncode == 130
    assert "It keeps running; wait for it with: forge-tools show" in err
    assert cli.json(*words)["output"] == "done\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--idempotency-scope", "team"), "need an --idempotency-key"),
        (("--idempotency-ttl", "60"), "need an --idempotency-key"),
        (("--idempotency-key", "k", "--local"), "leave out --idempotency-key"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(cli: Cli, words: tuple[str, ...], says: str) -> None:
    done = cli.run("run", "Add", "a=1", "b=2", *words)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.replace("│", " ").split())


def test_a_replay_has_its_own_result_and_both_show_the_other(cli: Cli) -> None:
    first = cli.json("run", "Add", "a=20", "b=22", "--agent", "replayed")
    plain = cli.json("replay", first["id"][:23])
    other = cli.json("replay", first["id"], "first=30", "--reason", "a was wrong")

    assert (plain["output"], other["output"]) == (42, 52)
    shown = cli.json("show", first["id"])
    assert [event["detail"]["as"] for event in shown["events"]] == [plain["id"], other["id"]]
    assert shown["events"][1]["detail"]["reason"] == "a was wrong"
    again = cli.json("show", other["id"])
    assert (again["replay_of"], again["parameters"]) == (first["id"], {"a": 30, "b": 22})
    assert {row["replay_of"] for row in cli.lines("history", "--agent", "replayed")} == {None, first["id"]}
    assert f"replay of {first['id']}" in " ".join(cli.run("show", other["id"]).stdout.split())


def test_a_replay_may_be_a_rehearsal(cli: Cli) -> None:
    first = cli.json("run", "Bash", "command=touch done", "--agent", "rehearsal")
    (cli.folder / "done").unlink()

    rehearsed = cli.run("replay", first["id"], "--dry-run")
    again = cli.run("replay", cli.lines("history", "--agent", "rehearsal")[0]["id"], "--no-dry-run")

    assert "Would run" in rehearsed.stdout
    assert again.returncode == 0
    assert (cli.folder / "done").exists()


def test_a_secret_is_asked_for_by_name(cli: Cli) -> None:
    first = cli.json("run", "Login", "user=ann", "password=sesame99", code=1)

    refused = cli.run("replay", first["id"])
    again = cli.json("replay", first["id"], "password=other-secret", code=1)

    assert refused.returncode == 1
    assert "pass password again" in refused.stderr
    assert again["error_code"] == "NO_ACCESS"
    assert "other-secret" not in cli.run("show", again["id"]).stdout


def test_what_is_unknown_or_not_over_is_not_replayed(cli: Cli) -> None:
    running = cli.json("run", "Wait", "seconds=30", "--background")

    unknown, early = cli.run("replay", "01a00000-0000-7000"), cli.run("replay", running["id"])
    cli.run("cancel", running["id"])

    assert (unknown.returncode, early.returncode) == (1, 1)
    assert "No execution has the id" in unknown.stderr
    assert "Wait for its end or cancel it first" in " ".join(early.stderr.split())


def test_a_word_that_is_not_a_parameter_is_a_usage_error_and_sends_nothing(cli: Cli) -> None:
    first = cli.json("run", "Add", "a=1", "b=2", "--agent", "unsent")
    done = cli.run("replay", first["id"], "a=one")
    assert done.returncode == 2
    assert len(cli.lines("history", "--agent", "unsent")) == 1
