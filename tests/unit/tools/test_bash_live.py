"""A follower of a Bash call sees its output line by line, as text; a dry run shows nothing."""

from forge_tools.model import Output
from forge_tools.testing import InlineExecutor
from forge_tools.tools.execution.bash import Bash


def shown(tools: InlineExecutor) -> str:
    return "".join(one.text for one in tools.reports if isinstance(one, Output))


def test_lines_are_shown_as_they_end() -> None:
    with InlineExecutor(Bash) as tools:
        result = tools.run("Bash", command="echo one; sleep 1.5; printf 'two\\r\\033[31mthree\\033[0m'; exit 3")

        assert shown(tools) == "one\nthree"
        assert tools.reports[0] == Output(text="one\n")
        assert result.output == "one\nthree\n[exit code: 3]"


def test_all_of_it_is_shown_also_of_what_the_result_leaves_out() -> None:
    with InlineExecutor(Bash, context={"max_output_size": 1000}) as tools:
        result = tools.run("Bash", command="seq 1 5000")

        assert shown(tools) == "".join(f"{number}\n" for number in range(1, 5001))
        assert len(str(result.output)) <= 1000


def test_a_dry_run_shows_nothing() -> None:
    with InlineExecutor(Bash, context={"dry_run": True}) as tools:
        tools.run("Bash", command="echo 'unfinished")

        assert tools.reports == []
