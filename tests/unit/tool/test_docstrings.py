"""What docstrings say of functions and their parameters, in three styles."""

import pytest

from forge_tools.tool.docstrings import read_docstring

GOOGLE = """Search the index.

    It knows two
    languages.

    Args:
        query (str): What to look for.
        limit (int, optional): How many, which may
            take two lines.

            And two paragraphs.
        a, b: Both of them: yes.
        *rest: More.

    Returns:
        query: this is no parameter.
    """
NUMPY = """Search the index.

    It knows two
    languages.

    Parameters
    ----------
    query : str
        What to look for.
    limit : int, optional
        How many, which may
        take two lines.

        And two paragraphs.
    a, b
        Both of them: yes.
    *rest
        More.

    Returns
    -------
    query : list
        this is no parameter.
    """
SPHINX = """Search the index.

    It knows two
    languages.

    :param query: What to look for.
    :type query: str
    :param int limit: How many, which may
        take two lines.

        And two paragraphs.
    :param a: Both of them: yes.
    :param b: Both of them: yes.
    :param *rest: More.
    :returns: this is no parameter.
    :raises ValueError: never.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_style_gives_the_same(docstring: str) -> None:
    docs = read_docstring(docstring)

    assert docs.description == "Search the index.\n\nIt knows two languages."
    assert docs.parameters == {
        "query": "What to look for.",
        "limit": "How many, which may take two lines.\n\nAnd two paragraphs.",
        "a": "Both of them: yes.",
        "b": "Both of them: yes.",
        "rest": "More.",
    }


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        (None, ""),
        ("", ""),
        ("One line.", "One line."),
        ("Use it: like this.", "Use it: like this."),
        ("First.\n\nNote: no section, since text follows.", "First.\n\nNote: no section, since text follows."),
        ("First.\n\n:mod:`x` is a role, not a field.", "First.\n\n:mod:`x` is a role, not a field."),
        ("First.\n\nReturns:\n    What it is.", "First."),
        ("First.\n\nReturns\n-------\nstr", "First."),
        ("First.\n\nReturns\nare welcome.", "First.\n\nReturns are welcome."),
        ("First.\n\nArgs:", "First."),
        ("Args:\n    x: Only parameters.", ""),
    ],
)
def test_the_text_before_the_first_section_is_the_description(docstring: str | None, description: str) -> None:
    assert read_docstring(docstring).description == description


def test_text_that_is_not_an_entry_is_part_of_none() -> None:
    docs = read_docstring("Do.\n\nArgs:\n    first: One.\n    no entry at all\n    second: Two.")

    assert docs.parameters == {"first": "One. no entry at all", "second": "Two."}
