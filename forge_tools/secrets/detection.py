"""Decides which parts of a call nobody may see, by names, patterns and references, and separates them from the rest."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from forge_tools.errors import SecretNotFoundError
from forge_tools.model.calls import ExecutionContext
from forge_tools.model.secret_names import (
    MAX_DEPTH,
    REDACTED,
    REFERENCE,
    is_reference,
    is_secret_name,
    secrets_in,
    without_secrets,
)
from forge_tools.model.tools import ToolSpec
from forge_tools.secrets.scrubber import NOTHING, Scrubber, leaves

WELL_KNOWN = "well-known"
"""As a pattern, it stands for all the patterns below."""

_SHAPES = (
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
    r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b",
    r"\bgithub_pat_\w{22,255}\b",
    r"\bglpat-[\w-]{20,}",
    r"\bsk-[\w-]{20,}",  # OpenAI, Anthropic
    r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}\b",  # Stripe
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"\bAIza[\w-]{35}",  # Google
    r"\bnpm_[A-Za-z0-9]{36}\b",
    r"\bhf_[A-Za-z0-9]{30,}\b",
    r"\bpypi-[\w-]{50,}",
    r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",  # JSON Web Token
    # Up to the next five dashes: else each BEGIN without an END would search the rest of the text.
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-(?!----)[^-]*)*-----END [A-Z ]*PRIVATE KEY-----",
    r"(?<=earer )[\w.~+/-]{16,}=*",  # after Bearer or bearer
    r"(?<=://)[^/\s:@]*:[^/\s]{6,}(?=@)",  # user:password in a URL
)

SCHEME = "secret://"
MAX_BYTES = 65_536


class Patterns:
    """Regular expressions, each of which finds a secret. The settings reject one that does not compile."""

    def __init__(self, patterns: Iterable[str]) -> None:
        shapes = [shape for one in patterns for shape in (_SHAPES if one == WELL_KNOWN else (one,))]
        self._search = re.compile("|".join(f"(?:{shape})" for shape in shapes))

    @classmethod
    def of(cls, patterns: Sequence[str]) -> Self | None:
        """Compile the patterns; None if there are none."""
        return cls(patterns) if patterns else None

    def found_in(self, value: Any) -> list[str]:
        found = (match[0] for text in leaves(value) for match in self._search.finditer(text))
        return [secret for secret in found if secret]


class Concealed(NamedTuple):
    """A call's parameters as people see them, and what those hide.

    `hidden` are values that are secret as a whole; `quoting` are values that only contain a secret, and are shown
    without it; `found` are those secrets. `metadata` is that of the context, if any, which people see as
    `shown_metadata`.
    """

    shown: dict[str, Any]
    hidden: dict[str, Any]
    quoting: dict[str, Any]
    found: list[str]
    metadata: dict[str, Any]
    shown_metadata: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.hidden, *self.quoting, *(("context.metadata",) if self.metadata else ()))

    @property
    def encrypted(self) -> dict[str, Any]:
        parts = {"hidden": self.hidden, "quoting": self.quoting, "found": self.found, "metadata": self.metadata}
        return {name: part for name, part in parts.items() if part}


class Opened(NamedTuple):
    """The reassembled parameters, the secrets among them, and the metadata of the context, if any."""

    parameters: dict[str, Any]
    secrets: tuple[str, ...]
    metadata: dict[str, Any]


class SecretDetector:
    """What a tool's definition hides, and what looks like a secret; prepared once for all its calls."""

    @classmethod
    def of(cls, spec: ToolSpec, patterns: Patterns | None = None) -> Self | None:
        """Return what conceals the calls of a tool; None if no call that it accepts can have anything to hide."""
        return cls(spec, patterns) if spec.may_hide or patterns else None

    def __init__(self, spec: ToolSpec, patterns: Patterns | None = None) -> None:
        self._patterns = patterns
        self._spec = spec

    def part(self, parameters: Mapping[str, Any], metadata: Mapping[str, Any] = NOTHING) -> Concealed | None:
        """Separate what is hidden from what is shown; None if nothing is hidden. A reference to a secret is not a secret.

        `metadata` is that of the call's context: names mark the secrets in it, and it may quote a parameter.
        """
        spec = self._spec
        hidden = {name: parameters[name] for name in spec.hidden(parameters) if not is_reference(parameters[name])}
        found = list(leaves([secrets_in(parameters[name]) for name in spec.holding(parameters)]))
        if metadata:
            found += leaves(secrets_in(metadata))
        if self._patterns is not None:
            others = [value for name, value in parameters.items() if name not in hidden]
            found += self._patterns.found_in([*others, metadata])
        if not hidden and not found:
            return None
        scrubber = Scrubber([*leaves(hidden), *found])
        shown = {
            name: REDACTED if name in hidden else scrubber.value(without_secrets(value))
            for name, value in parameters.items()
        }
        quoting = {name: parameters[name] for name in shown if name not in hidden and shown[name] != parameters[name]}
        shown_metadata = scrubber.value(without_secrets(metadata))
        apart = dict(metadata) if shown_metadata != metadata else {}
        return Concealed(shown, hidden, quoting, found, apart, shown_metadata)

    def seen(self, parameters: Mapping[str, Any], context: ExecutionContext) -> tuple[dict[str, Any], ExecutionContext]:
        """Copy the parameters and the context of a call as people may see them."""
        parts = self.part(parameters, context.metadata)
        if parts is None:
            return dict(parameters), context
        return parts.shown, context.model_copy(update={"metadata": parts.shown_metadata})

    @staticmethod
    def join(shown: Mapping[str, Any], encrypted: Mapping[str, Any]) -> Opened:
        hidden, quoting = encrypted.get("hidden", {}), encrypted.get("quoting", {})
        secrets = (*leaves(hidden), *leaves(encrypted.get("found", [])))
        return Opened({**shown, **hidden, **quoting}, secrets, dict(encrypted.get("metadata", {})))


def as_shown(spec: ToolSpec, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the parameters of a call as people may see them: without secrets, even if another value quotes them."""
    parts = SecretDetector(spec).part(parameters)
    return dict(parameters) if parts is None else parts.shown


class SecretSource:
    """The secrets of a worker by name: environment variables, and files of a folder, read on each use."""

    def __init__(self, variables: Mapping[str, str], folder: Path | None = None) -> None:
        self._variables = dict(variables)
        self._folder = folder

    def resolve(self, value: Any, found: list[str], depth: int = 0, *, is_named: bool = True) -> Any:
        """Copy a value with its references replaced by their secrets; `found` receives each secret inserted.

        If the value itself `is_named` as a secret, every text in it may be one, else only items with the name of one.

        Raises:
            SecretNotFoundError: naming the one that this worker does not have.
        """
        if isinstance(value, str) and is_named and (match := REFERENCE.fullmatch(value)) is not None:
            found.append(secret := self.secret(match[1]))
            return secret
        if depth >= MAX_DEPTH:
            return value
        if isinstance(value, dict):
            return {
                key: self.resolve(item, found, depth + 1, is_named=is_named or is_secret_name(key))
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.resolve(item, found, depth + 1, is_named=is_named) for item in value]
        return value

    def get(self, name: str) -> str | None:
        """Return the secret of that name, or None.

        Raises:
            SecretNotFoundError: its file cannot be read.
        """
        if self._folder is not None and (text := _read(self._folder / name)) is not None:
            return text
        return self._variables.get(name)

    def secret(self, name: str) -> str:
        """Return the secret of that name.

        Raises:
            SecretNotFoundError: there is none; says where it was looked for.
        """
        if (found := self.get(name)) is not None:
            return found
        places = f"FORGE_SECRET_{name} in its environment" + (
            f", nor {self._folder / name}" if self._folder is not None else ", and FORGE_SECRETS_DIR is not set"
        )
        raise SecretNotFoundError(
            f"Unknown secret: {SCHEME}{name}. The worker has no {places}. Set it for every worker that hosts the tool."
        )


def _read(path: Path) -> str | None:
    """Return the text of a secret's file, without the line end that editors add."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        raise SecretNotFoundError(
            f"{path} cannot be read: {error.strerror}. Make it readable for the workers' user."
        ) from error
    if len(data) > MAX_BYTES:
        raise SecretNotFoundError(f"{path} is larger than {MAX_BYTES:,} bytes, the limit for a secret.")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise SecretNotFoundError(f"{path} is not UTF-8 text. Store binary secrets as base64.") from error
