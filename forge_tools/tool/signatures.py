"""Converts the signature of a function to the parameters of a tool, and calls of one to calls of the other.

pydantic describes the annotations; its JSON Schema is expanded into the keywords that every provider accepts.
"""

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from pydantic import SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, SchemaError, to_jsonable_python

from forge_tools.errors import InvalidCallError, InvalidToolError, own_words
from forge_tools.model.calls import ExecutionContext
from forge_tools.model.tools import Schema, ToolParameter
from forge_tools.schema import clean_text, suggestion
from forge_tools.tool.dependencies import Depends, dependency_in
from forge_tools.tool.docstrings import Docs

_FIELDS = {
    "enum": "enum",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minimum": "minimum",
    "maximum": "maximum",
    "items": "items",
    "properties": "properties",
    "required": "required_properties",
}
"""Keywords for which a ToolParameter has a field."""

_DROPPED = frozenset({"title", "discriminator", "writeOnly", "$defs", "oneOf", "const", "prefixItems"})
"""Keywords that tell a model nothing, or that are expressed in another way here."""

_EMPTY = (list, dict, set)
"""Factories that make the same default for each call."""

_WAY_OUT = "Take a type that JSON has (str, int, float, bool, list, dict, a pydantic model) and convert it inside."


def asked_types(annotation: Any) -> tuple[Any, ...]:
    """Return the types that an annotation requests: those of a union except None, without what `Annotated` adds."""
    if get_origin(annotation) is Annotated:
        return asked_types(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return tuple(kind for part in get_args(annotation) for kind in asked_types(part))
    return () if annotation in {None, NoneType} else (annotation,)


def accepted(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Return a JSON value as its annotation means it.

    Raises:
        ValidationError: the annotation rejects it.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        try:
            text = json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise error from None
        return adapter.validate_json(text)  # strict types accept a date as text only from JSON


class _RecursiveTypeError(ValueError):
    """A type contains itself; the argument is its name."""


@dataclass(frozen=True, slots=True)
class _Argument:
    parameter: ToolParameter
    adapter: TypeAdapter[Any]
    absent: Callable[[], Any]


class Signature:
    """What a function takes: from its caller, and by annotation from its host.

    `given` maps further types to functions that create their values on the host; `sensitive` names parameters.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        docs: Docs,
        *,
        given: Mapping[Any, Callable[[], Any]] | None = None,
        sensitive: Collection[str] = (),
    ) -> None:
        self._function = function
        self._label = f"{function.__module__}.{function.__qualname__}"
        self._docs = docs
        self._sensitive = sensitive
        self._arguments: dict[str, _Argument] = {}
        self._contexts: list[str] = []
        self.dependencies: dict[str, Depends] = {}
        """Parameters whose values are created for the body."""
        self._formal = inspect.signature(function).parameters
        for formal in self._formal.values():
            annotation = self._annotation(formal)
            kinds = asked_types(annotation)
            if (made := dependency_in(annotation)) is not None:
                self.dependencies[formal.name] = made
            elif kinds == (ExecutionContext,):
                self._contexts.append(formal.name)
            elif given and len(kinds) == 1 and kinds[0] in given:
                self.dependencies[formal.name] = Depends(given[kinds[0]])
            else:
                self._arguments[formal.name] = self._argument(formal, annotation)
        for name in sensitive:
            if name not in self._arguments:
                hint = suggestion(name, self._arguments)
                raise self._refusal(name, f"is declared sensitive, but does not exist{hint}")

    @property
    def parameters(self) -> tuple[ToolParameter, ...]:
        """What callers may pass, in the order of the function."""
        return tuple(argument.parameter for argument in self._arguments.values())

    def bind(self, context: ExecutionContext, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, by position and by keyword, for values as JSON carries them.

        Raises:
            InvalidCallError: with every value that its annotation rejects.
        """
        filled, problems = dict[str, Any](), list[str]()
        for name, argument in self._arguments.items():
            try:
                filled[name] = accepted(argument.adapter, values[name]) if name in values else argument.absent()
            except ValidationError as error:
                problems += _problems(name, error)
        if problems:
            raise InvalidCallError(problems[0], problems)
        filled |= {name: values[name] for name in self.dependencies if name in values}
        filled |= dict.fromkeys(self._contexts, context)
        leading = [name for name, formal in self._formal.items() if formal.kind is Parameter.POSITIONAL_ONLY]
        return [filled.pop(name) for name in leading if name in filled], filled  # a dry run makes no dependencies

    def as_parameters(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[ExecutionContext | None, dict[str, Any]]:
        """Turn a caller's arguments into the context of a call and its parameters as JSON values.

        Raises:
            TypeError: as the function itself would, for arguments it does not take.
        """
        given = inspect.signature(self._function).bind_partial(*args, **kwargs).arguments
        missing = [name for name, one in self._arguments.items() if one.parameter.required and name not in given]
        if missing:
            raise TypeError(f"{self._function.__name__}() lacks {', '.join(missing)}")
        contexts = [value for value in given.values() if isinstance(value, ExecutionContext)]
        parameters = {name: _jsonable(value) for name, value in given.items() if name in self._arguments}
        return next(iter(contexts), None), parameters

    def _annotation(self, formal: Parameter) -> Any:
        if formal.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
            kind = "list[str]" if formal.kind is Parameter.VAR_POSITIONAL else "dict[str, Any]"
            raise self._refusal(str(formal).partition(":")[0], f"has no schema. Take one parameter of type `{kind}`.")
        if formal.annotation is Parameter.empty:
            hint = f"Annotate it, as in `{formal.name}: str`."
            if formal.name in {"self", "cls"}:
                hint = "Decorate a function, or pass a bound method: `tool(service.search)`."
            raise self._refusal(formal.name, f"has no annotation. {hint}")
        function = inspect.unwrap(self._function)
        known = {**getattr(function, "__globals__", {}), **_closure(function)}
        # One annotation at a time: an error of all at once would not say which parameter it is about.
        asked = SimpleNamespace(__annotations__={formal.name: formal.annotation})
        try:
            return get_type_hints(asked, known, include_extras=True)[formal.name]
        except (NameError, AttributeError) as error:
            raise self._refusal(
                formal.name,
                f"has an annotation that cannot be resolved ({error}). Import or define it at the top of the module, "
                "outside `if TYPE_CHECKING`.",
            ) from error
        except (TypeError, SyntaxError) as error:
            raise self._refusal(formal.name, f"has no type for an annotation: {error}.") from error

    def _argument(self, formal: Parameter, annotation: Any) -> _Argument:
        try:
            field = FieldInfo.from_annotation(annotation)
            if formal.default is not Parameter.empty:
                field = FieldInfo.from_annotated_attribute(annotation, formal.default)
            if field.alias is not None or field.validation_alias is not None:
                raise self._refusal(formal.name, "has an alias. Give the parameter the name that callers should use.")
            kind: Any = Annotated[cast(Any, field.annotation), field]
            adapter: TypeAdapter[Any] = TypeAdapter(kind)
            schema = adapter.json_schema(schema_generator=_Schemas)
        except (PydanticUserError, PydanticSerializationError, SchemaError) as error:
            said = error.message.splitlines()[0] if isinstance(error, PydanticUserError) else str(error)
            reason = clean_text(" ".join(said.split()).removesuffix("."))
            raise self._refusal(formal.name, f"cannot be described as JSON Schema: {reason}. {_WAY_OUT}") from error
        parameter = self._parameter(formal.name, field, schema, adapter)
        self._require_callable(parameter, adapter)
        return _Argument(parameter, adapter, _absent(formal, field))

    def _parameter(self, name: str, field: FieldInfo, schema: Any, adapter: TypeAdapter[Any]) -> ToolParameter:
        is_sensitive = name in self._sensitive or _is_secret(schema)
        default = None if is_sensitive or field.is_required() else self._default(name, field, adapter)
        try:
            return _to_parameter(
                name,
                schema,
                description=field.description or _note(field) or self._docs.parameters.get(name, ""),
                required=field.is_required(),
                default=default,
                sensitive=is_sensitive or None,
            )
        except _RecursiveTypeError as error:
            raise self._refusal(
                name,
                f"has the type {error}, which contains itself; schemas for models are written out. Take "
                f"`dict[str, Any]` and call `{error}.model_validate` inside, or give it a fixed depth.",
            ) from error

    def _default(self, name: str, field: FieldInfo, adapter: TypeAdapter[Any]) -> Any:
        """Return the default as JSON; None, meaning no default, if JSON cannot hold it."""
        if field.default_factory is not None and field.default_factory not in _EMPTY:  # another value for each call
            return None
        value = field.get_default(call_default_factory=True, validated_data={})
        if value is None:
            return None
        if any(one in (None, NoneType) for one in get_args(field.annotation)):  # a union, or choices
            raise self._refusal(
                name,
                f"may be None, but its default is {value!r}; null in a call means that no value was given. "
                "Make None the default, or use another value than None for this.",
            )
        try:
            default = to_jsonable_python(value)
            json.dumps(default, allow_nan=False)
        except ValueError:  # a sentinel such as object(), which only the function knows, or infinity
            return None
        try:
            accepted(adapter, default)
        except ValidationError as error:
            raise self._refusal(name, f"has a default that its own annotation refuses: {default!r}.") from error
        return default

    def _require_callable(self, parameter: ToolParameter, adapter: TypeAdapter[Any]) -> None:
        """Reject choices that JSON cannot carry, such as bytes or tuples."""
        for choice in parameter.enum or ():
            try:
                accepted(adapter, choice)
            except ValidationError as error:
                problem = f"has a choice that no call can make: its JSON form, {choice!r}, is refused. {_WAY_OUT}"
                raise self._refusal(parameter.name, problem) from error

    def _refusal(self, name: str, problem: str) -> InvalidToolError:
        return InvalidToolError(self._function.__name__, f"parameter '{name}' of {self._label} {problem}")


class _Schemas(GenerateJsonSchema):
    """Omits defaults that only Python knows."""

    ignored_warning_kinds = GenerateJsonSchema.ignored_warning_kinds | {"non-serializable-default"}


def _jsonable(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr | SecretBytes) else to_jsonable_python(value)


def _closure(function: Any) -> dict[str, Any]:
    """Return the names of enclosing functions that annotations may use, if the body uses them."""
    try:
        return dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, ValueError):
        return {}


def _note(field: FieldInfo) -> str:
    """Return a text among the annotations, as in `Annotated[str, "What to say."]`."""
    return next((note for note in field.metadata if isinstance(note, str)), "")


def _absent(formal: Parameter, field: FieldInfo) -> Callable[[], Any]:
    """Create the value of a parameter that was not passed: its own default, unless pydantic's `Field` holds it."""
    if formal.default is not Parameter.empty and not isinstance(formal.default, FieldInfo):
        return lambda: formal.default
    return lambda: field.get_default(call_default_factory=True, validated_data={})


def _problems(name: str, error: ValidationError) -> list[str]:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return [
        f"Invalid value for {name}{''.join(_step(step) for step in detail['loc'])}: {own_words(detail['msg'])}"
        for detail in details
    ]


def _step(step: int | str) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{clean_text(step)}"


def _to_parameter(name: str, schema: Schema, **declared: Any) -> ToolParameter:
    """Build the parameter for a schema as pydantic writes it; `declared` are fields that the schema does not decide.

    Raises:
        _RecursiveTypeError: a type contains itself, which cannot be expanded.
    """
    fragment = _written_out(schema, schema.get("$defs", {}), ())
    if not declared["required"]:
        fragment = _without_null(fragment)
    fragment.pop("default", None)
    described = fragment.pop("description", "")
    declared["description"] = declared["description"] or described
    kind = fragment.pop("type", "any")
    if not isinstance(kind, str):
        fragment["type"], kind = kind, "any"
    known = {field: fragment.pop(keyword) for keyword, field in _FIELDS.items() if keyword in fragment}
    return ToolParameter(name=name, type=kind, **known, keywords=fragment or None, **declared)


def _is_secret(schema: Any) -> bool:
    """Whether pydantic hides a value somewhere inside, as it does those of `SecretStr`."""
    if isinstance(schema, dict):
        return schema.get("writeOnly") is True or any(map(_is_secret, schema.values()))
    return isinstance(schema, list) and any(map(_is_secret, schema))


def _written_out(schema: Schema, definitions: Mapping[str, Schema], inside: tuple[str, ...]) -> Schema:
    """Copy a schema with its references resolved, in keywords that all providers know."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2].replace("~1", "/").replace("~0", "~")
        if name in inside:
            raise _RecursiveTypeError(name)
        meant = definitions[name] | {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
        return _written_out(meant, definitions, (*inside, name))

    def inner(part: Any) -> Any:
        return _written_out(part, definitions, inside) if isinstance(part, dict) else part

    copy = {keyword: value for keyword, value in schema.items() if keyword not in _DROPPED}
    copy |= _reworded(schema)
    for keyword in ("items", "additionalProperties", "propertyNames"):
        if keyword in copy:
            copy[keyword] = inner(copy[keyword])
    for keyword in ("properties", "patternProperties"):
        if keyword in copy:
            copy[keyword] = {name: inner(part) for name, part in copy[keyword].items()}
    for keyword in ("anyOf", "allOf"):
        if keyword in copy:
            copy[keyword] = [inner(part) for part in copy[keyword]]
    return copy


def _reworded(schema: Schema) -> Schema:
    """Translate keywords that some providers reject into ones that all know."""
    said: Schema = {}
    if "const" in schema:
        said["enum"] = [schema["const"]]
    if "oneOf" in schema:
        said["anyOf"] = schema["oneOf"]
    if "prefixItems" in schema:
        kinds = [
            kind for number, kind in enumerate(schema["prefixItems"]) if kind not in schema["prefixItems"][:number]
        ]
        said["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return said


def _without_null(schema: Schema) -> Schema:
    """Drop null: for an optional parameter, null and leaving it out mean the same."""
    forms = schema.get("anyOf")
    if not isinstance(forms, list) or {"type": "null"} not in forms:
        return schema
    rest = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
    others = [form for form in forms if form != {"type": "null"}]
    return {**others[0], **rest} if len(others) == 1 else {**rest, "anyOf": others}
