"""The check of one call's parameters: ten of them, with objects and lists inside, beside jsonschema-rs."""

import time
from collections.abc import Callable
from typing import Any

import jsonschema_rs

from benchmarks.figures import Bar, Measure, Readings, Row
from benchmarks.scene import Scene
from forge_tools.model import ToolCategory, ToolParameter, ToolSpec
from forge_tools.schema import Validator

ADDRESS = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "minLength": 1},
        "city": {"type": "string"},
        "place": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}},
    },
    "required": ["street", "city"],
}
PARAMETERS = (
    ToolParameter(name="title", type="string", description="Title.", min_length=1, max_length=200),
    ToolParameter(name="body", type="string", description="Body."),
    ToolParameter(name="priority", type="integer", description="Priority.", minimum=0, maximum=9),
    ToolParameter(name="ratio", type="number", description="Ratio.", minimum=0),
    ToolParameter(name="draft", type="boolean", description="Draft."),
    ToolParameter(name="kind", type="string", description="Kind.", enum=["bug", "feature", "question"]),
    ToolParameter(name="tags", type="array", description="Tags.", items={"type": "string", "maxLength": 40}),
    ToolParameter(
        name="author",
        type="object",
        description="Author.",
        properties={"name": {"type": "string"}, "address": ADDRESS},
        required_properties=("name",),
    ),
    ToolParameter(name="reviewers", type="array", description="Reviewers.", items=ADDRESS),
    ToolParameter(name="notes", type="string", description="Notes.", required=False),
)
PLACE = {"street": "Long Lane 1", "city": "York", "place": {"lat": 53.96, "lon": -1.08}}
CALL: dict[str, Any] = {
    "title": "A page is slow",
    "body": "It takes a minute, every time, and a second one when it is empty.",
    "priority": 3,
    "ratio": 0.75,
    "draft": False,
    "kind": "bug",
    "tags": ["page", "slow", "empty"],
    "author": {"name": "Kim", "address": PLACE},
    "reviewers": [PLACE, PLACE],
    "notes": "none",
}
SPEC = ToolSpec(name="File", description="File a report.", category=ToolCategory.OTHER, parameters=PARAMETERS)


def ours(scene: Scene) -> Readings:
    """Do what happens to every call: find its first problem."""
    validator = Validator.for_spec(SPEC)
    _must_tell_apart(lambda call: validator.first_error(call) is None)
    return {"each": _time(lambda: validator.first_error(CALL), scene.sizes.in_process)}


def compiled(scene: Scene) -> Readings:
    validator = jsonschema_rs.validator_for(
        {
            "type": "object",
            "properties": {one.name: one.to_json_schema() for one in PARAMETERS},
            "required": [one.name for one in PARAMETERS if one.required],
            "additionalProperties": False,
        }
    )
    _must_tell_apart(validator.is_valid)
    return {"each": _time(lambda: validator.is_valid(CALL), scene.sizes.in_process)}


def _must_tell_apart(is_valid: Callable[[dict[str, Any]], bool]) -> None:
    """A check that accepts everything would be the fastest."""
    broken = {**CALL, "reviewers": [PLACE, {**PLACE, "place": {"lat": "north"}}]}
    if not is_valid(CALL) or is_valid(broken) or is_valid({**CALL, "more": 1}):
        raise RuntimeError("the validator does not tell a good call from a bad one")


def _time(check: Callable[[], Any], times: int) -> float:
    for _ in range(times // 10):
        check()
    started = time.perf_counter()
    for _ in range(times):
        check()
    return (time.perf_counter() - started) / times * 1e6


MEASURE = Measure(
    name="validation",
    sides={"jsonschema-rs": compiled, "validator": ours},
    rows=[
        Row(
            title="validation of 10 parameters with nested objects (jsonschema-rs)",
            unit="us",
            key="each",
            ours="validator",
            raw="jsonschema-rs",
            bar=Bar("ratio", "at most", 2),
        )
    ],
)
