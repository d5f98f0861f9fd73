"""What no tool touches inside a workspace: the insides of a repository, and the files that hold secrets."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from forge_tools.errors import SandboxError
from forge_tools.sandbox.names import escape_path
from forge_tools.sandbox.refusals import PROTECTED

INTERNALS = (".git", ".hg", ".svn")
SECRETS = (
    ".env", ".env.*", ".netrc", ".pgpass", ".pypirc", ".git-credentials", ".ssh", ".gnupg", ".aws", ".forge",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
)  # fmt: skip
HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist")

_WILD = {"*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True)
class Protection:
    """Patterns for names, with `*` and `?`; a path is protected by any name on it, in whatever case.

    `internals` can be read and not written, `secrets` neither; `harmless` names are never protected.
    """

    internals: Sequence[str] = INTERNALS
    secrets: Sequence[str] = SECRETS
    harmless: Sequence[str] = HARMLESS

    def check(self, parts: Iterable[str], shown: str, *, is_write: bool) -> None:
        """Refuse a path, given by its names below the root.

        Raises:
            SandboxError: it is protected (PATH_PROTECTED); with the way out.
        """
        path = f"/{'/'.join(parts)}".casefold()
        for found in self._secret.finditer(path):
            if not self._harmless.match(found[0]):
                raise _refused(
                    shown, f"{escape_path(found[0][1:])} may hold secrets, which tools neither read nor write"
                )
        inner = self._internal.search(path) if is_write else None
        if inner:
            why = f"{escape_path(inner[0][1:])} is changed by its own commands alone, such as git; tools only read it"
            raise _refused(shown, why)

    def hides(self, name: str) -> bool:
        """Whether what has that name cannot be read."""
        path = f"/{name}".casefold()
        return bool(self._secret.match(path)) and not self._harmless.match(path)

    def hidden_of(self, names: Sequence[str]) -> set[str]:
        """Choose those of the names in a folder that cannot be read."""
        # As no name has a slash in it, all of them are asked about at once, like the parts of a path.
        if not self._secret.search(f"/{'/'.join(names)}".casefold()):
            return set()
        return {name for name in names if self.hides(name)}

    @cached_property
    def _secret(self) -> re.Pattern[str]:
        return _any_of(tuple(self.secrets))

    @cached_property
    def _internal(self) -> re.Pattern[str]:
        return _any_of(tuple(self.internals))

    @cached_property
    def _harmless(self) -> re.Pattern[str]:
        return _any_of(tuple(self.harmless))


@lru_cache(maxsize=64)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """An expression for a slash and the name after it, to be searched in a whole path at once; every call has the same."""
    names = "|".join("".join(_WILD.get(char, re.escape(char)) for char in one.casefold()) for one in patterns)
    return re.compile(rf"/(?:{names})(?=/|\Z)" if names else r"(?!)")


def _refused(shown: str, why: str) -> SandboxError:
    way_out = "Leave it out, use a file without secrets (.env.example), or ask a person to do this step"
    if "commands" in why:
        way_out = "Run that command with Bash"
    return SandboxError(f"Path is protected by policy: {shown}: {why}. {way_out}", PROTECTED)
