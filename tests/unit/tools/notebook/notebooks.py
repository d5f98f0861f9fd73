"""Notebooks as several programs write them."""

import json
from typing import Any


def code(source: Any = "x = 1\n", **more: Any) -> dict[str, Any]:
    cell = {"cell_type": "code", "execution_count": 7, "id": "c0de", "metadata": {}, "outputs": [], "source": source}
    return cell | more


def text(source: Any = "# Title", **more: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": "7e87", "metadata": {}, "source": source} | more


def stream(said: Any) -> dict[str, Any]:
    return {"name": "stdout", "output_type": "stream", "text": said}


def notebook(*cells: Any, minor: int = 5, **more: Any) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": minor} | more


def written(book: Any, **how: Any) -> bytes:
    """What json.dump writes, by default as Jupyter has it."""
    return (json.dumps(book, **({"indent": 1, "ensure_ascii": False} | how)) + "\n").encode()
