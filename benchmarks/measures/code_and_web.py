"""Tools for code, web and memory beside what others use: ctags, jedi, the MCP servers for fetching and memory, markdownify.

Everything runs in one process and in turns, ours through an executor that validates, limits and records each call. The Python that is
searched is a copy of SQLAlchemy. The definitions found, compared with ctags by language, are counted in sources from npm, PyPI and Debian.
"""

import ast
import asyncio
import importlib.util
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.agent import Agent
from benchmarks.figures import Bar, LeftOutError, Measure, Readings, Row
from benchmarks.mcp_server import FOLDER, McpServer, install, running
from benchmarks.pairs import MILLISECONDS, Work, by_turns, on_loop
from benchmarks.peers.environments import InstallationError, install_packages, interpreter
from benchmarks.scene import Scene
from forge_tools.sandbox.paths.workspace import Workspace
from forge_tools.storage import open_store
from forge_tools.storage.documents import Documents
from forge_tools.storage.migrate import upgrade
from forge_tools.tools.builtin import Deadline
from forge_tools.tools.code.codebase import read
from tests.unit.tools.web.site import page, site

REFERENCES = ("jedi==0.20.1", "markdownify==1.2.3", "mcp-server-fetch==2026.10.24")
SYMBOL, DEFINED_IN = "QueuePool", "pool/impl.py"
WARM_CALLS = 60
WRITERS, NOTES = 40, 500
PAGE = "<html><head><title>A page</title></head><body><main><h1>Head</h1>{}</main></body></html>"
PARAGRAPH = (
    "<p>Words with <a href='/there'>a link</a>, <b>weight</b> and <code>code</code>, and then some more of them.</p>\n"
)
JEDI = """
import json, sys, time, jedi
path, line, column, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jedi.settings.cache_directory = sys.argv[5]
started = time.process_time()
found = jedi.Script(path=path, project=jedi.Project(folder)).get_references(line, column)
places = [(str(one.module_path), one.line) for one in found if one.module_path]
print(json.dumps([time.process_time() - started, places]))
"""
MARKDOWNIFY = """
import sys, time, markdownify
html = sys.stdin.read()
started = time.perf_counter()
markdownify.markdownify(html)
print(time.perf_counter() - started)
"""
DURABLE = """
const { promises: fs } = require("fs"), write = fs.writeFile;
fs.writeFile = async (path, ...rest) => {
  await write(path, ...rest);
  const file = await fs.open(path);
  try { await file.sync(); } finally { await file.close(); }
};
"""
"""Makes a program of node wait for the disk with each file that it writes, as our database does with each commit."""

PIP = ("-m", "pip", "download", "--no-deps", "--no-binary", ":all:")
CORPORA: Mapping[str, tuple[Sequence[str], str]] = {
    "c": (("{python}", *PIP, "hiredis==3.5.0"), "*.tar.gz"),
    "javascript": (("npm", "pack", "npm@11.19.1"), "*.tgz"),
    "typescript": (("npm", "pack", "rxjs@7.8.2"), "*.tgz"),
    "cpp": (("{python}", *PIP, "jpype1==1.7.1"), "*.tar.gz"),
    "java": (("{python}", *PIP, "jpype1==1.7.1"), "*.tar.gz"),
    "go": (("apt-get", "download", "golang-github-spf13-cobra-dev"), "*.deb"),
    "rust": (("apt-get", "download", "librust-serde-dev"), "*.deb"),
}
"""By language how sources of it are downloaded, as what. """
KINDS = {
    *(
        "function",
        "func",
        "method",
        "constructor",
        "generator",
        "class",
        "record",
        "struct",
        "union",
        "enum",
        "interface",
        "trait",
    ),
}
"""What is compared; of other kinds each counts what it likes."""


def code(scene: Scene) -> Readings:
    """Look-ups of symbols and references in a copy of SQLAlchemy, beside a whole run of ctags, and jedi."""
    ctags, folder, cache = _ctags(), _copy("sqlalchemy", scene.folder / "code"), scene.folder / "index"
    agent = Agent(folder, cache=cache, max_output_size=1_000_000)
    lines = count()

    async def cold() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        await agent.call("SymbolInfo", symbol=SYMBOL)

    async def changed() -> None:
        with (folder / "pool/base.py").open("a") as file:
            file.write(f"# {next(lines)}\n")
        await agent.call("SymbolInfo", symbol=SYMBOL)

    def tags() -> None:
        subprocess.run([ctags, "-R", "-f", scene.folder / "tags", folder], check=True, capture_output=True)

    async def run() -> Readings:
        readings: dict[str, float] = await by_turns({"cold": cold, "ctags": on_loop(tags)}, scene.sizes.tool_pairs)
        await agent.call("CodebaseMap")
        found = await agent.call("SearchCode", query="Pool", limit=500)
        names = [hit["name"].replace("/", ".") for hit in found.metadata["hits"]]
        took = [await _took(agent.call("SymbolInfo", symbol=names[n % len(names)])) for n in range(WARM_CALLS)]
        readings |= {"warm_p95": sorted(took)[int(WARM_CALLS * 0.95)]}
        again = await by_turns({"changed": changed, "ctags_again": on_loop(tags)}, scene.sizes.tool_pairs)
        return {**readings, **again, **await _beside_jedi(agent, folder)}

    return asyncio.run(run())


async def _beside_jedi(agent: Agent, folder: Path) -> Readings:
    """Two searches of jedi, without its imports and at first without its cache, and the references of ours that it has, too; all in processor time."""
    text = (folder / DEFINED_IN).read_text().split("\n")
    line = next(number for number, said in enumerate(text, 1) if said.startswith(f"class {SYMBOL}"))
    with tempfile.TemporaryDirectory() as cache:
        asked = (str(folder / DEFINED_IN), str(line), "6", str(folder.parent), cache)
        (first, places), (again, _) = (json.loads(_python("-c", JEDI, *asked)) for _ in range(2))
    options = {"symbol": SYMBOL, "file": DEFINED_IN, "include_definition": True, "limit": 2000}
    readings = {"jedi": first * MILLISECONDS, "jedi_again": again * MILLISECONDS}
    took = list[float]()
    for _ in range(5):
        started = time.process_time()
        found = (await agent.call("FindReferences", **options)).metadata["references"]
        took.append((time.process_time() - started) * MILLISECONDS)
    readings |= {"references": median(took)}
    sure = {(one["path"], one["line"]) for one in found if one["confidence"] != "guess"}
    true = {(Path(path).relative_to(folder).as_posix(), line) for path, line in places if path.startswith(f"{folder}/")}
    return {**readings, **_agreement("references", sure, sure, true, true)}


def truth(language: str, scene: Scene) -> Readings:
    """Count our definitions that the reference also has, and its definitions that we find: Python's parser for Python, else ctags."""
    folder = _copy("sqlalchemy", scene.folder / "code") if language == "python" else _downloaded(language)
    codebase = read(Workspace(folder), ".", Deadline(1000))
    mine = {
        (source.path, one.line, one.name.lstrip("#")): one.kind
        for source, one in codebase.definitions()
        if source.language.name == language
    }
    paths = [path for path, source in codebase.sources.items() if source.language.name == language]
    theirs = dict((_of_python if language == "python" else _of_ctags)(folder, paths))
    sure = {place for place, kind in mine.items() if kind in KINDS}
    true = {place for place, kind in theirs.items() if kind in KINDS}
    return {**_agreement("definitions", sure, set(mine), set(theirs), true), "count": float(len(true))}


def web(scene: Scene) -> Readings:
    """Fetch a page of 3 kB and one of 3 MB from our own server."""
    pages = {"/small": PAGE.format(PARAGRAPH * 25), "/large": PAGE.format(PARAGRAPH * 27_000)}
    _python("-c", "import mcp_server_fetch")
    server = [interpreter("references"), "-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"]

    async def run() -> Readings:
        answers = {path: page(text.encode()) for path, text in pages.items()}
        async with site(answers) as one, running(server) as theirs:
            agent, url = Agent(scene.folder, web=one.web(), max_output_size=10_000_000), one.url("", "127.0.0.1")
            works = {
                "fetch": lambda: agent.call("WebFetch", url=f"{url}/small"),
                "their_fetch": lambda: theirs.call("fetch", url=f"{url}/small"),
            }
            readings = await by_turns(works, scene.sizes.tool_pairs)
            large = await _took(agent.call("WebFetch", url=f"{url}/large"))
            seconds = float(_python("-c", MARKDOWNIFY, told=pages["/large"]))
            return readings | {"large": large, "markdownify": seconds * MILLISECONDS}

    return asyncio.run(run())


def memory(scene: Scene) -> Readings:
    """Write a note and find one, ours on SQLite; and count how many notes are kept if two processes write at once.

    The server's writes are timed as they are, and also waiting for the disk as ours do.
    """
    folder, numbers = scene.folder / f"memory-{time.time_ns()}", count()
    folder.mkdir()
    url, file = f"sqlite:///{folder}/memory.db", folder / "memory.jsonl"
    upgrade(url)
    program, durably = str(install("memory")), folder / "durably.js"
    durably.write_text(DURABLE)
    node, where = ["node", program], {"MEMORY_FILE_PATH": str(file)}
    durable = ["node", "--require", str(durably), program], {"MEMORY_FILE_PATH": str(folder / "durable.jsonl")}

    def entity(name: str) -> dict[str, Any]:
        return {"name": name, "entityType": "note", "observations": ["Ask Ada for the key."]}

    async def run() -> Readings:
        async with await open_store(url) as one, await open_store(url) as other:
            agents = [Agent(scene.folder, documents=_Durable(store.documents)) for store in (one, other)]
            async with running(node, where) as theirs, running(node, where) as others, running(*durable) as waiting:

                async def write(agent: Agent, folder: str = "") -> None:
                    path = f"/memories/{folder}{next(numbers)}.md"
                    await agent.call("Memory", command="create", path=path, content="Ask Ada for the key.")

                async def their_write(server: McpServer) -> None:
                    await server.call("create_entities", entities=[entity(f"note {next(numbers)}")])

                for _ in range(NOTES):
                    await write(agents[0])
                for server in (theirs, waiting):
                    notes = [entity(f"note {next(numbers)}") for _ in range(NOTES)]
                    await server.call("create_entities", entities=notes)
                works: dict[str, Work] = {
                    "write": lambda: write(agents[0]),
                    "their_write": lambda: their_write(theirs),
                    "their_durable_write": lambda: their_write(waiting),
                }
                readings = await by_turns(works, scene.sizes.tool_pairs * 4)
                searches: dict[str, Work] = {
                    "search": lambda: agents[0].call("Memory", command="search", query="ada key", limit=10),
                    "their_search": lambda: theirs.call("search_nodes", query="Ada"),
                }
                readings |= await by_turns(searches, scene.sizes.tool_pairs * 4)
                before = file.read_text().count('"note"')
                await asyncio.gather(*(write(agents[n % 2], "both/") for n in range(WRITERS)))
                await asyncio.gather(*(_in_turn(their_write, server) for server in (theirs, others)))
                ours = await agents[0].call("Memory", command="list", path="/memories/both", limit=200)
                kept = len(ours.metadata["documents"]), file.read_text().count('"note"') - before
                return readings | {"kept": kept[0], "their_kept": kept[1]}

    return asyncio.run(run())


class _Durable:
    """Documents of a store as bodies reach them in a worker, here without its engine between them."""

    is_durable = True

    def __init__(self, documents: Documents) -> None:
        self.find, self.read, self.change = documents.find, documents.read, documents.change


async def _in_turn(write: Callable[[McpServer], Awaitable[None]], server: McpServer) -> None:
    """Ask one thing at a time, as a client of the server does."""
    for _ in range(WRITERS // 2):
        await write(server)


async def _took(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return (time.perf_counter() - started) * MILLISECONDS


def _python(*arguments: str, told: str | None = None) -> str:
    """Run the interpreter that has the references; returns what it prints."""
    try:
        install_packages("references", REFERENCES, "".join(REFERENCES).encode())
    except InstallationError as error:
        raise LeftOutError(str(error)) from error
    command = [interpreter("references"), *arguments]
    return subprocess.run(command, input=told, check=True, text=True, capture_output=True).stdout


def _ctags() -> str:
    found = shutil.which("ctags")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout if found else ""
    if found is None or not said.startswith("Universal Ctags"):
        raise LeftOutError("Universal Ctags is not installed: apt-get install universal-ctags")
    return found


def _copy(package: str, to: Path) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    if not (to / package).exists():
        shutil.copytree(Path(spec.origin).parent, to / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return to / package


def _downloaded(language: str) -> Path:
    """The folder of a corpus in `.bench/`, fetched at its first use."""
    command, pattern = CORPORA[language]
    folder = FOLDER / "corpora" / language
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _python("-c", "")
        words = [word.format(python=interpreter("references")) for word in command]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        packed = next(folder.glob(pattern), None)
        if done.returncode or packed is None:
            raise LeftOutError(f"{' '.join(words)}: {done.stderr.strip()[-200:]}")
        if packed.suffix == ".deb":
            subprocess.run(["dpkg-deb", "-x", packed, folder], check=True)
        else:
            subprocess.run(["tar", "-xf", packed], cwd=folder, check=True)
        (folder / "done").touch()
    return folder


def _of_python(folder: Path, paths: Sequence[str]) -> Iterator[tuple[tuple[str, int, str], str]]:
    for path in paths:
        for node in ast.walk(ast.parse((folder / path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield (path, node.lineno, node.name), "function"


def _of_ctags(folder: Path, paths: Sequence[str]) -> Iterator[tuple[tuple[str, int, str], str]]:
    command = [_ctags(), "--output-format=json", "--fields=+nK", "--extras=-{anonymous}", "-f", "-", "-L", "-"]
    listed = "\n".join(paths)
    said = subprocess.run(command, cwd=folder, input=listed, capture_output=True, text=True, check=True).stdout
    for line in said.split("\n")[:-1]:
        tag = json.loads(line)
        is_object = tag.get("kind") == "class" and tag["path"].endswith(
            "js"
        )  # it counts any JavaScript object as a class
        if "line" in tag and not is_object:
            yield (tag["path"], tag["line"], tag["name"].rpartition("::")[2]), tag["kind"]


def _agreement(name: str, sure: set[Any], found: set[Any], known: set[Any], true: set[Any]) -> Readings:
    """Return the precision of our sure answers, and the recall of the true ones."""
    return {
        f"{name}_precision": len(sure & known) / max(1, len(sure)),
        f"{name}_recall": len(true & found) / max(1, len(true)),
    }


def _row(title: str, key: str, raw: str | None, bar: Bar | None, unit: str = "ms") -> Row:
    return Row(title=title, unit=unit, key=key, ours="ours", raw="ours" if raw else None, raw_key=raw, bar=bar)


CODE = Measure(
    name="tools-code",
    sides={"ours": code},
    rows=[
        _row("a symbol looked up without an index (ctags -R)", "cold", "ctags", Bar("ratio", "at most", 0.5)),
        _row("a symbol looked up with an index, p95", "warm_p95", None, Bar("value", "at most", 20)),
        _row("a symbol looked up after a change of one file (ctags -R)", "changed", "ctags_again", Bar("ratio", "at most", 0.1)),
        _row("FindReferences with an index, processor time (jedi without its cache)", "references", "jedi", Bar("ratio", "at most", 0.1)),
        _row("the same (jedi with its cache)", "references", "jedi_again", Bar("ratio", "at most", 0.1)),
        _row("references that jedi has, too", "references_precision", None, None, ""),
        _row("references of jedi that were found", "references_recall", None, Bar("value", "at least", 0.95), ""),
    ],
)  # fmt: skip

TRUTH = Measure(
    name="tools-truth",
    sides={language: partial(truth, language) for language in ("python", *CORPORA)},
    rounds_at_most=1,
    rows=[
        Row(title=f"{language}: {what}", unit="", key=key, ours=language, bar=bar if language == "python" else None)
        for language in ("python", *CORPORA)
        for what, key, bar in (
            ("definitions that the reference has, too", "definitions_precision", Bar("value", "at least", 0.99)),
            ("definitions of the reference that were found", "definitions_recall", Bar("value", "at least", 0.99)),
            ("how many it has", "count", None),
        )
    ],
)

WEB = Measure(
    name="tools-web",
    sides={"ours": web},
    rows=[
        _row("WebFetch, a page of 3 kB (MCP fetch server)", "fetch", "their_fetch", Bar("ratio", "at most", 0.05)),
        _row("WebFetch, a page of 3 MB (markdownify alone)", "large", "markdownify", Bar("ratio", "at most", 0.1)),
    ],
)

MEMORY = Measure(
    name="tools-memory",
    sides={"ours": memory},
    rows=[
        _row(f"Memory, a note written beside {NOTES}, ours durable (MCP memory server)", "write", "their_write", Bar("ratio", "at most", 1)),
        _row("the same, both durable", "write", "their_durable_write", Bar("ratio", "at most", 1)),
        _row(f"Memory, a search in {NOTES} notes (MCP memory server)", "search", "their_search", Bar("ratio", "at most", 1)),
        _row(f"notes kept of {WRITERS}, two writers at once", "kept", "their_kept", Bar("value", "at least", WRITERS), ""),
    ],
)  # fmt: skip
