"""Plans are read from PostgreSQL's own log, by statement."""

from pathlib import Path

from benchmarks.plans import changes, plans_in, scans

LOG = """\
2026-01-01 00:00:00.000 UTC [7] LOG:  database system is ready to accept connections
2026-01-01 00:00:01.000 UTC [9] LOG:  duration: 0.121 ms  plan:
\t{
\t  "Query Text": "SELECT *\\n  FROM executions",
\t  "Plan": {"Node Type": "Limit", "Plans": [{"Node Type": "Seq Scan", "Relation Name": "executions"}]}
\t}
2026-01-01 00:00:02.000 UTC [9] LOG:  duration: 0.021 ms  plan:
\t{
\t  "Query Text": "SELECT 1 FROM execution_queue",
\t  "Plan": {"Node Type": "Index Scan", "Index Name": "due", "Relation Name": "execution_queue"}
\t}
"""


def test_each_statement_has_the_plans_that_it_ran_with(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    log.write_text(LOG)

    found = plans_in(log, 0)

    assert found["SELECT * FROM executions"] == {"Limit; Seq Scan on executions"}
    assert found["SELECT 1 FROM execution_queue"] == {"Index Scan due on execution_queue"}
    assert scans(found) == ["SELECT * FROM executions"]


def test_what_was_logged_before_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    log.write_text(LOG)

    assert plans_in(log, len(LOG)) == {}


def test_a_statement_has_changed_when_both_ran_it_and_differently() -> None:
    index, scan = frozenset({"Index Scan due on executions"}), frozenset({"Seq Scan on executions"})

    assert changes({"a": index, "b": index}, {"a": scan, "b": index, "c": scan}) == ["a"]
