"""What ties calls to others: digests that tell whether two are the same, the secret that makes them so, and a row of history as a call of today."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client.call import Call
from forge_tools.client.links import differences, digest_key, fingerprint, repeated
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, InvalidCallError
from forge_tools.model import (
    ExecutionContext,
    ExecutionRecord,
    ExecutionStatus,
    ToolCategory,
    ToolParameter,
    ToolSpec,
    new_id,
)

SECRET = b"s" * 32

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = ToolSpec(
    name="Deploy",
    description="Deploy a site.",
    category=ToolCategory.OTHER,
    parameters=(
        ToolParameter(name="site", type="string", description="Which.", aliases=("name",)),
        ToolParameter(name="token", type="string", description="Secret.", sensitive=True),
    ),
)


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
    assert differences(made({}), made({})) == []
    assert differences(made({}), made({}, secret=b"t" * 32)) is None


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

    with pytest.raises(ConfigurationError, match=r"forge\.db\.digest-key does not contain a digest key"):
        digest_key(settings_of(tmp_path))


@pytest.mark.parametrize("mode", [0o604, 0o660, 0o640])
def test_a_file_that_others_can_read_or_change_is_no_secret(tmp_path: Path, mode: int) -> None:
    digest_key(settings_of(tmp_path))
    path = tmp_path / "forge.db.digest-key"
    path.chmod(mode)

    with pytest.raises(ConfigurationError, match="chmod 600"):
        digest_key(settings_of(tmp_path))


def test_a_folder_that_is_not_there_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read or created: No such file or directory"):
        digest_key(settings_of(tmp_path / "gone"))


def test_what_is_in_the_way_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "forge.db.digest-key").mkdir()

    with pytest.raises(ConfigurationError, match="Is a directory"):
        digest_key(settings_of(tmp_path))


def record(**changes: Any) -> ExecutionRecord:
    context = ExecutionContext(working_dir="/srv", agent_id="ann", session_id="s1", metadata={"trace": "t"})
    plain = ExecutionRecord(
        id=new_id(),
        tool="Deploy",
        tool_version="1.0.0",
        category="other",
        status=ExecutionStatus.SUCCEEDED,
        parameters={"site": "docs"},
        context=context.model_dump(),
        agent_id="ann",
        session_id="s1",
        queue="default",
        lane="async",
        timeout=120.0,
        timeout_source="default",
        soft_time_limit=125,
        time_limit=127,
        attempt=1,
        max_attempts=1,
        queued_at=NOW,
        started_at=NOW,
        completed_at=NOW,
        duration_ms=1.0,
        worker_id=None,
        hostname=None,
        output=None,
        error=None,
        error_code=None,
        error_details=None,
        metadata={},
    )
    return replace(plain, **changes)


def call_of(one: ExecutionRecord, parameters: dict[str, Any] | None = None, **options: Any) -> Call:
    return repeated(one, options.pop("spec", SPEC), parameters or {}, options.pop("dry_run", None), options)


def test_who_asked_where_and_for_what_stays() -> None:
    call = call_of(record())

    assert (call.name, call.parameters, call.queue, call.idempotency_key) == ("Deploy", {"site": "docs"}, None, None)
    assert call.effective_context.model_dump() == record().context


@pytest.mark.parametrize(
    ("source", "asked"),
    [("default", None), ("tool", None), ("call", 7.0), ("operator maximum (asked 7s by call)", 7.0), ("rejected", 7.0)],
)
def test_a_timeout_is_asked_for_if_it_was(source: str, asked: float | None) -> None:
    one = record(timeout_source=source, context={**record().context, "timeout": 7.0})

    context = call_of(one).effective_context
    assert (context.timeout if "timeout" in context.model_fields_set else None) == asked


@pytest.mark.parametrize(
    ("queue", "kept"), [("default", None), ("background", "background"), ("gpu", "gpu"), ("host.alpha", None)]
)
def test_a_queue_of_its_own_is_kept_and_a_host_is_found_again(queue: str, kept: str | None) -> None:
    assert call_of(record(queue=queue)).queue == kept


@pytest.mark.parametrize(("was", "asked", "is_now"), [(True, None, True), (True, False, False), (False, True, True)])
def test_a_rehearsal_stays_one_unless_said_otherwise(was: bool, asked: bool | None, is_now: bool) -> None:
    one = record(context={**record().context, "dry_run": was})

    assert call_of(one, dry_run=asked).effective_context.dry_run is is_now


def test_other_values_come_by_name_or_alias_and_fields_of_the_call_as_keywords() -> None:
    call = call_of(record(), {"name": "blog"}, queue="background", idempotency_key="again")

    assert (call.parameters, call.queue, call.idempotency_key) == ({"site": "blog"}, "background", "again")


def test_a_name_and_its_alias_at_once_are_left_for_the_checks_to_refuse() -> None:
    assert call_of(record(), {"name": "blog", "site": "news"}).parameters == {"name": "blog", "site": "news"}


def test_none_takes_out_what_the_tool_no_longer_knows() -> None:
    one = record(parameters={"site": "docs", "colour": "red"})

    assert call_of(one, {"colour": None}).parameters == {"site": "docs"}
    assert call_of(one, {"site": None, "colour": "blue"}).parameters == {"site": None, "colour": "blue"}


@pytest.mark.parametrize(
    "hidden",
    ["[redacted]", "Bearer [redacted]", {"auth": ["x", {"token": "[redacted]"}]}, ["[redacted]"], {"a [redacted]": 1}],
)
def test_what_history_hides_has_to_be_given_again(hidden: Any) -> None:
    one = record(parameters={"site": "docs", "token": hidden})

    with pytest.raises(InvalidCallError, match=f"pass token again to replay execution {one.id}") as caught:
        call_of(one)
    assert caught.value.details == ["Missing secret value: token"]
    assert call_of(one, {"token": "t"}).parameters == {"site": "docs", "token": "t"}


def test_a_context_with_hidden_metadata_has_to_be_given_again() -> None:
    one = record(context={**record().context, "metadata": {"api_key": "[redacted]"}})

    with pytest.raises(InvalidCallError, match=f"the metadata of execution {one.id} had some"):
        call_of(one)
    context = ExecutionContext(working_dir=".", metadata={"api_key": "k"})
    assert call_of(one, context=context).effective_context == context


@pytest.mark.parametrize("status", [ExecutionStatus.QUEUED, ExecutionStatus.RUNNING, ExecutionStatus.AWAITING_APPROVAL])
def test_what_is_not_over_is_only_rehearsed(status: ExecutionStatus) -> None:
    one = record(status=status)

    with pytest.raises(InvalidCallError, match=f"is {status.value}: running it again now"):
        call_of(one)
    assert call_of(one, dry_run=True).effective_context.dry_run


def test_a_tool_that_is_gone_and_a_context_of_another_release_are_no_obstacle() -> None:
    one = record(context={"working_dir": "/srv", "colour": "red"})

    call = call_of(one, {"name": "blog"}, spec=None)

    assert call.parameters == {"site": "docs", "name": "blog"}
    assert call.effective_context.working_dir == "/srv"
