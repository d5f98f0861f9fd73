"""The state of a git repository as its files tell it: git itself, whose settings may run programs, is not run."""

import re
from datetime import UTC, datetime

from forge_tools.tools.file.text import visible
from forge_tools.tools.project.survey import Claims, Survey

_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"ref: (refs/[\w./-]+)")
_ENTRY = re.compile(
    r"^\w+ (?P<id>\w+) (?P<who>[^\n<]*)<[^>\n]*> (?P<time>\d{1,11}) [+-]\d{4}\t(?P<what>[^\n]*)$", re.MULTILINE
)
_MAX_BYTES = 4 << 20


def repository_claims(survey: Survey) -> Claims:
    """Say the branch, the last commit and what it was, of the repository in the folder itself."""
    claims, git = Claims(), ".git/"
    head = _read(survey, ".git/HEAD")
    if head is None:
        if (link := _read(survey, ".git")) is not None and link.startswith("gitdir:"):
            claims.add(
                "git", "a worktree or submodule, whose repository is kept elsewhere", f"{survey.shown('.git')}:1"
            )
            return claims
        if {"HEAD", "config"} <= survey.files.keys() and (head := _read(survey, "HEAD")) is not None:
            git = ""
            claims.add("git", "a bare repository", f"{survey.shown('HEAD')}:1")
    if head is None:
        return claims
    where, ref, commit = f"{survey.shown(f'{git}HEAD')}:1", _REF.match(head), _HASH.match(head)
    if ref:
        claims.add("git", f"branch {ref[1].removeprefix('refs/heads/')}", where)
        commit = _HASH.match(_read(survey, f"{git}{ref[1]}") or "") or _packed(
            _read(survey, f"{git}packed-refs"), ref[1]
        )
    elif commit:
        claims.add("git", "detached head, on no branch", where)
    if commit is None:
        claims.add("git", "no commit yet", where, "likely")
        return claims
    claims.add("git", f"last commit {commit[0][:12]}", where)
    log = _read(survey, f"{git}logs/HEAD") or ""
    for entry in list(_ENTRY.finditer(log))[-1:]:
        when = datetime.fromtimestamp(int(entry["time"]), UTC).strftime("%Y-%m-%d")
        line = log.count("\n", 0, entry.start()) + 1
        what = f"last entry of its log: {when}, {visible(entry['what'])}"
        claims.add("git", what, f"{survey.shown(f'{git}logs/HEAD')}:{line}", "likely")
    return claims


def _packed(packed: str | None, ref: str) -> re.Match[str] | None:
    found = re.search(rf"^(\w+) {re.escape(ref)}$", packed or "", re.MULTILINE)
    return _HASH.match(found[1]) if found else None


def _read(survey: Survey, path: str) -> str | None:
    data = survey.data(path, _MAX_BYTES)
    return None if data is None else data.decode("utf-8", "replace")
