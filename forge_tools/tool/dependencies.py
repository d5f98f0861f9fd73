"""What a body receives besides its parameters: made when first needed and cleaned up, or set by name on its host."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import SecretBytes, SecretStr, TypeAdapter, ValidationError

from forge_tools.config import Settings
from forge_tools.environment import given_secrets, variable
from forge_tools.errors import ConfigurationError, ForgeError, own_words
from forge_tools.model.calls import ExecutionContext
from forge_tools.secrets.detection import SecretSource

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Depends:
    """In `Annotated[Index, Depends(make_index)]`: a parameter that callers do not see, created by `make`.

    It is created once for each worker process, or for each `call`. `make` is a function or a generator function, `def`
    or `async def`; the code after its `yield` cleans up. It may have dependencies of its own, and for a call use its
    ExecutionContext.
    """

    make: Callable[..., Any]
    per: Literal["worker", "call"] = "worker"


@dataclass(frozen=True, slots=True)
class Setting:
    """In `Annotated[int, Setting("WEATHER_LIMIT", 10)]`: a parameter that callers do not see, and that the host fills.

    Its value is the environment variable of that name, converted to the type. A `SecretStr` is a secret:
    `FORGE_SECRET_<name>`, or the file of that name in FORGE_SECRETS_DIR; it is scrubbed like the secrets of a call.
    Without a default it must exist when a worker starts.
    """

    name: str
    default: Any = field(default=_NOTHING, hash=False)  # it may be a list, and settings are keys of dictionaries


@dataclass(frozen=True, slots=True)
class Named:
    """Returns the value of a setting, in the type of its parameter."""

    setting: Setting
    type: Any

    @property
    def is_secret(self) -> bool:
        return isinstance(self.type, type) and issubclass(self.type, SecretStr | SecretBytes)

    def __call__(self) -> Any:
        """Return the value in this process."""
        return self.read(SecretSource(given_secrets(), Settings.load().secrets_dir) if self.is_secret else None)

    def read(self, secrets: SecretSource | None) -> Any:
        """Return the value; `secrets` provides it if it is a secret.

        Raises:
            ConfigurationError, SecretNotFoundError: it is missing or does not fit.
        """
        name, default = self.setting.name, self.setting.default
        if secrets is not None and self.is_secret:
            text = secrets.get(name) if default is not _NOTHING else secrets.secret(name)
        else:
            text = variable(name)
        if text is None and default is _NOTHING:
            raise ConfigurationError(
                f"{name} is not set. Set it in the environment of every worker that hosts the tool."
            )
        return default if text is None else self._parsed(text)

    def _parsed(self, text: str) -> Any:
        adapter: TypeAdapter[Any] = TypeAdapter(self.type)
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            try:
                return adapter.validate_json(text)  # lists and objects
            except ValidationError:
                said = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
                raise ConfigurationError(f"{self.setting.name} is not valid: {own_words(said)}.") from None


def engine() -> Any:
    """In `Annotated[Index | None, Depends(engine)]`: the engine of this host, None if it has none (spec S1-10).

    The host decides what creates it: a worker by FORGE_ENGINE, an executor by its `overrides`, as `{engine:
    make_index}`.
    """
    return None


class Dependencies:
    """What was created for one process, on one loop; `overrides` replace functions that would create it, for tests."""

    def __init__(self, overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None) -> None:
        self.overrides = overrides or {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kept: dict[Callable[..., Any], asyncio.Future[Any]] = {}
        self._ends = AsyncExitStack()
        self._told: dict[Named, Any] = {}

    def secrets_in(self, settings: Collection[Named]) -> list[str]:
        """Return the texts of the secrets among these; a missing one fails when it is requested."""
        for one in settings:
            if one.is_secret and one not in self._told:
                with suppress(ForgeError):
                    self._told[one] = self.overrides.get(one, one)()
        told = (self._told.get(one) for one in settings)
        found = [value.get_secret_value() for value in told if isinstance(value, SecretStr | SecretBytes)]
        return [one.decode(errors="replace") if isinstance(one, bytes) else one for one in found]

    async def get(self, one: Depends, context: ExecutionContext | None, call: AsyncExitStack) -> Any:
        """Return the value of `one`; a value created for the call ends with `call`."""
        if one.per == "call":
            if context is None:
                raise ConfigurationError(
                    f"{_name(one.make)} is made for each call, so it cannot be part of something that is made once per worker."
                )
            return await self._make(one.make, context, call)
        if (loop := asyncio.get_running_loop()) is not self._loop:  # a forked process creates its own
            self._loop, self._kept, self._ends = loop, {}, AsyncExitStack()
        if one.make not in self._kept:
            self._kept[one.make] = asyncio.ensure_future(self._make(one.make, None, self._ends))
        kept = self._kept[one.make]
        try:
            return await asyncio.shield(kept)  # other calls may be waiting for it: the cancel of one must not stop it
        finally:
            if kept.done() and (kept.cancelled() or kept.exception() is not None):
                self._kept.pop(one.make, None)  # another call may succeed

    async def close(self) -> None:
        """Clean up what was created for the worker, in reverse order."""
        if asyncio.get_running_loop() is self._loop:
            self._kept.clear()
            await self._ends.aclose()

    async def _make(self, make: Callable[..., Any], context: ExecutionContext | None, ends: AsyncExitStack) -> Any:
        make = self.overrides.get(make, make)
        given = {name: await self.get(one, context, ends) for name, one in dependencies_of(make).items()}
        for name in (name for name, kind in _hints(make).items() if kind is ExecutionContext and name != "return"):
            if context is None:
                raise ConfigurationError(
                    f'{_name(make)} takes the context of a call: use Depends({_name(make)}, per="call").'
                )
            given[name] = context
        if inspect.isasyncgenfunction(make):
            return await ends.enter_async_context(asynccontextmanager(make)(**given))
        if inspect.isgeneratorfunction(make):
            return ends.enter_context(contextmanager(make)(**given))
        made = make(**given)
        return await made if inspect.isawaitable(made) else made


DEPENDENCIES: ContextVar[Dependencies | None] = ContextVar("forge_dependencies", default=None)
"""The dependencies of the executor that runs this call."""


def has_engine() -> bool:
    """Whether this call runs on a host with an engine."""
    shared = DEPENDENCIES.get()
    return shared is not None and engine in shared.overrides


def dependency_in(annotation: Any) -> Depends | None:
    """Return the `Depends` that an annotation carries; a `Setting` is one, too."""
    kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else (None,)
    found = next((note for note in notes if isinstance(note, Depends | Setting)), None)
    return Depends(Named(found, kind)) if isinstance(found, Setting) else found


def dependencies_of(function: Callable[..., Any]) -> dict[str, Depends]:
    """Return the parameters of a function that are created for it, by name."""
    found = {name: dependency_in(annotation) for name, annotation in _hints(function).items()}
    return {name: one for name, one in found.items() if one is not None}


def settings_in(needs: Iterable[Depends]) -> tuple[Named, ...]:
    """Return the settings among these dependencies and their own dependencies."""
    found = dict[Named, None]()
    for one in needs:
        if isinstance(one.make, Named):
            found[one.make] = None
        else:
            found |= dict.fromkeys(settings_in(dependencies_of(one.make).values()))
    return tuple(found)


def with_dependencies(
    body: Callable[..., Awaitable[Any]], needs: Mapping[str, Depends]
) -> Callable[..., Awaitable[Any]]:
    """Wrap a body so that it receives what it needs."""

    async def run(context: ExecutionContext, /, **parameters: Any) -> Any:
        shared = DEPENDENCIES.get()
        made = Dependencies() if shared is None else shared
        try:
            async with AsyncExitStack() as ends:
                given = {name: await made.get(one, context, ends) for name, one in needs.items()}
                return await body(context, **parameters, **given)
        finally:
            if shared is None:
                await made.close()

    return run


def _hints(function: Any) -> dict[str, Any]:
    if not inspect.isroutine(function):
        function = function.__init__ if inspect.isclass(function) else type(function).__call__
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):  # names known only to type checkers; then it takes nothing of ours
        return {}


def _name(make: Any) -> str:
    return str(getattr(make, "__name__", make))
