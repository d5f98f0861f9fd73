"""What a tool's host provides by name: settings and secrets, which are known before the first call."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretBytes, SecretStr, TypeAdapter, ValidationError

from forge_tools.config import Settings
from forge_tools.environment import given_secrets, variable
from forge_tools.errors import ConfigurationError
from forge_tools.secrets.detection import SecretSource

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Setting:
    """In `Annotated[int, Setting("WEATHER_LIMIT", 10)]`: a parameter that callers do not see, and that the host fills.

    Its value is the environment variable of that name, converted to the type. A `SecretStr` is a secret:
    `FORGE_SECRET_<name>`, or the file of that name in FORGE_SECRETS_DIR; it is scrubbed like the secrets of a call.
    Without a default it must exist when a worker starts.
    """

    name: str
    default: Any = field(default=_NOTHING, hash=False)


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
                raise ConfigurationError(f"{self.setting.name} is not valid: {said}.") from None


def secrets_among(values: Iterable[Any]) -> list[str]:
    """Return the texts of the secrets among these values."""
    found = [value.get_secret_value() for value in values if isinstance(value, SecretStr | SecretBytes)]
    return [one.decode(errors="replace") if isinstance(one, bytes) else one for one in found]
