"""Secrets by reference: `secret://NAME` in a sensitive parameter stands for what the worker has under that name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_tools.errors import SecretNotFoundError
from forge_tools.model import REFERENCE, is_secret_name

SCHEME = "secret://"
MAX_BYTES = 65_536

_MAX_DEPTH = 100


class SecretSource:
    """What a worker has by name: variables of its environment, and the files of a folder, which are read anew each time."""

    def __init__(self, variables: Mapping[str, str], folder: Path | None = None) -> None:
        self._variables = dict(variables)
        self._folder = folder

    def resolve(self, value: Any, found: list[str], depth: int = 0) -> Any:
        """Copy a value with what its references stand for in their place; `found` gets each secret that was put there.

        Raises:
            SecretNotFoundError: naming the one that this worker does not have.
        """
        if isinstance(value, str):
            match = REFERENCE.fullmatch(value)
            if match is None:
                return value
            found.append(secret := self.secret(match[1]))
            return secret
        if depth >= _MAX_DEPTH:
            return value
        if isinstance(value, dict):
            return {key: self.resolve(item, found, depth + 1) for key, item in value.items()}
        return [self.resolve(item, found, depth + 1) for item in value] if isinstance(value, list) else value

    def resolve_inside(self, value: Any, found: list[str], depth: int = 0) -> Any:
        """Do what `resolve` does, but only for what has the name of a secret inside a value.

        Raises:
            SecretNotFoundError: naming the one that this worker does not have.
        """
        if depth >= _MAX_DEPTH:
            return value
        if isinstance(value, dict):
            return {
                key: self.resolve(item, found) if is_secret_name(key) else self.resolve_inside(item, found, depth + 1)
                for key, item in value.items()
            }
        return [self.resolve_inside(item, found, depth + 1) for item in value] if isinstance(value, list) else value

    def get(self, name: str) -> str | None:
        """The secret of that name, None where there is none.

        Raises:
            SecretNotFoundError: its file cannot be read.
        """
        if self._folder is not None and (text := _read(self._folder / name)) is not None:
            return text
        return self._variables.get(name)

    def secret(self, name: str) -> str:
        """The secret of that name.

        Raises:
            SecretNotFoundError: there is none; says where it was looked for.
        """
        if (found := self.get(name)) is not None:
            return found
        places = f"FORGE_SECRET_{name} in its environment" + (
            f", nor {self._folder / name}" if self._folder is not None else ", and FORGE_SECRETS_DIR names no folder"
        )
        raise SecretNotFoundError(
            f"Unknown secret: {SCHEME}{name}. The worker has no {places}. Give it to every worker that hosts the tool."
        )


def _read(path: Path) -> str | None:
    """The text of a secret's file, without the line end that editors add."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        raise SecretNotFoundError(f"{path} cannot be read: {error.strerror}. Give it to the workers' user.") from error
    if len(data) > MAX_BYTES:
        raise SecretNotFoundError(f"{path} is larger than {MAX_BYTES:,} bytes, the limit for a secret.")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise SecretNotFoundError(f"{path} is not UTF-8 text. Keep what is binary as base64.") from error
