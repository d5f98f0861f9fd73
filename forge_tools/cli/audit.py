"""`forge-tools audit`: verifies history against the audit chain."""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.text import Text
from typer import Argument, Option

from forge_tools.cli.face import FAILED, App, Face
from forge_tools.cli.live import moving_line
from forge_tools.cli.services import whoami, with_store
from forge_tools.cli.text import counted, facts, iso, one_line, printable, took
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ForgeError
from forge_tools.model.audit import AuditReport, Finding
from forge_tools.storage import Store
from forge_tools.storage.audit import HeadFile, OvertakenError, Signer, Trust
from forge_tools.storage.audit.chain import ALL
from forge_tools.storage.audit.proof import make_key

app = App(no_args_is_help=True, help="Prove that no row of an ended execution was changed, removed or inserted.")

_SHOWN = 20
_TRIES, _PAUSE = 50, 0.1

UNSIGNED = (
    "It is not signed: this finds changes by someone who does not know about the chain. Anyone who can write to the database "
    "can rebuild all of it. Set FORGE_AUDIT_KEY, or keep `forge-tools audit head` elsewhere and compare it with --heads."
)
UNCHECKED = "It is signed, but no key was given: pass the public key with --key, or the signatures prove nothing."


@app.command()
def verify(
    face: Face,
    *,
    key: Annotated[
        list[Path] | None,
        Option(metavar="FILE", help="A trusted key, in PEM; repeat for several. Default: FORGE_AUDIT_KEY."),
    ] = None,
    heads: Annotated[
        Path | None,
        Option(metavar="FILE", help="Heads kept elsewhere, which must be in the chain. Else FORGE_AUDIT_HEADS."),
    ] = None,
    signed_from: Annotated[
        int, Option(metavar="N", min=1, help="The first batch that must be signed, if there was no key before.")
    ] = 1,
) -> None:
    """Say whether history is as it was sealed. Exit code 1 if not.

    Every row is compared with its hash, and the chain with its signatures and the heads that were kept.
    """
    settings = Settings.load()
    own = _own_key(settings)
    trust = Trust.load(key or ([] if own is None else [own]))
    file = HeadFile(heads or settings.audit_heads_file)
    kept = file.read()  # read before the chain, which then contains each of them

    async def compare(store: Store) -> AuditReport:
        columns = (TextColumn("Comparing"), BarColumn(), MofNCompleteColumn())
        with moving_line(face, *columns, total=await store.audit.count()) as told:
            return await store.audit.verify(
                trust, heads=kept, signed_from=signed_from, told=lambda count: told(completed=count)
            )

    report = with_store(compare, settings)
    said = _said_of_heads(file, report)
    if face.is_json:
        face.document(_document(report, trust) | {"heads": said})
    else:
        _print(face, report, trust, said)
    if not report.is_intact:
        raise typer.Exit(FAILED)


@app.command()
def head(face: Face) -> None:
    """Print the head of the chain. Keep it where nobody who writes to the database can change it."""
    found = with_store(lambda store: store.audit.head())
    if found is None:
        raise ForgeError("Nothing is sealed yet. Workers seal, or: forge-tools audit seal")
    face.tell(asdict(found) | {"head": str(found)}, str(found))


@app.command()
def seal(
    face: Face,
    left_out: Annotated[
        bool,
        Option("--left-out", help="Also seal what ended long ago and is in no batch; verify reports it as inserted."),
    ] = False,
) -> None:
    """Add what has ended by now to the audit chain, without a worker."""
    settings = Settings.load()
    signer = signing_key(settings)
    count = with_store(lambda store: seal_all(store, signer, left_out=left_out), settings)
    face.tell({"executions": count}, f"{counted(count, 'execution')} sealed." if count else "Nothing to seal.")


@app.command()
def keygen(
    face: Face,
    file: Annotated[
        Path | None,
        Argument(help="Where to write it, by default FORGE_AUDIT_KEY; the public key gets the same name with .pub."),
    ] = None,
    if_none: Annotated[bool, Option("--if-none", help="Do nothing if there is one already.")] = False,
) -> None:
    """Make a key for FORGE_AUDIT_KEY of the workers. Verifying needs only FILE.pub."""
    file = file or Settings.load().audit_key
    if file is None:
        raise typer.BadParameter("name a file, or set FORGE_AUDIT_KEY.", param_hint="FILE")
    signer = Signer.load_or_make(file) if if_none else make_key(file)
    face.tell(
        {"key_id": signer.key_id, "private": str(file), "public": f"{file}.pub"},
        f"Key {signer.key_id}: {file} signs and is only for the workers; {file}.pub verifies.",
    )


async def seal_all(store: Store, signer: Signer | None, *, left_out: bool = False) -> int:
    """Add everything that is over to the chain; return the number of executions. A worker may do so at the same time."""
    count = 0
    for remaining in reversed(range(_TRIES)):
        try:
            async for sealed in store.audit.sweep(signer, sealer=whoami(), behind=ALL if left_out else None):
                count += sealed.executions
            break
        except OvertakenError:
            if not remaining:
                raise
            await asyncio.sleep(_PAUSE)
    return count


def signing_key(settings: Settings) -> Signer | None:
    path = _own_key(settings)
    return None if path is None else Signer.load(path)


def _own_key(settings: Settings) -> Path | None:
    own = settings.embedded_audit_key
    return settings.audit_key or (own if settings.is_embedded and own.exists() else None)


def _said_of_heads(file: HeadFile, report: AuditReport) -> str:
    said = f"{counted(report.kept_heads, 'head')} kept in {file.path}"
    if not report.kept_heads:
        said += ", so nothing shows whether the chain was longer before"
    if report.is_intact and report.head is not None:
        try:
            file.keep(report.head)
        except ConfigurationError as error:
            said += f". {error}"
    return said


def _document(report: AuditReport, trust: Trust) -> dict[str, Any]:
    kept = report.head and asdict(report.head) | {"head": str(report.head)}
    return asdict(report) | {"head": kept, "is_intact": report.is_intact, "proof": _proof(report, trust)}


def _proof(report: AuditReport, trust: Trust) -> str:
    if not report.key_ids:
        return UNSIGNED
    if not trust:
        return UNCHECKED
    return f"{report.signatures:,} of {report.batches:,} batches are signed by a given key."


def _print(face: Face, report: AuditReport, trust: Trust, heads: str) -> None:
    if report.findings:
        face.out.print(facts((one.fault.value, _shown(one)) for one in report.findings[:_SHOWN]))
        if report.found > _SHOWN:
            face.say(f"... and {report.found - _SHOWN:,} more; --output json has the first {len(report.findings):,}.")
        face.say()
    face.out.print(facts([*_facts(report), ("heads", heads)]))
    # Not a row of the table, which would fold what people copy.
    face.say(f"head        {report.head}\n" if report.head else "")
    if report.head is None and report.is_intact:
        face.say("Nothing is sealed, so nothing is proven.", style="bold yellow")
        return
    if report.is_intact:
        face.say("Intact: nothing that was sealed was changed, removed or inserted.", style="bold green")
    else:
        face.say(f"NOT INTACT: {counted(report.found, 'finding')}.", style="bold red")
    face.out.print(Text(printable(_proof(report, trust)), style="dim" if report.signatures else "yellow"))


def _shown(finding: Finding) -> Text:
    """Format two lines: the key of a row must be readable in full, and a table with it is wider than many terminals."""
    row, said = one_line(f"{finding.table} {finding.key}"), one_line(finding.said)
    return Text.assemble(row, "\n", (said, "dim"))


def _facts(report: AuditReport) -> Iterator[tuple[str, object]]:
    executions = f"{report.executions:,} executions with their attempts"
    yield "compared", f"{executions}, {report.events:,} events, {report.definitions:,} definitions of tools"
    if report.ended_from is not None:
        yield "ended", f"from {iso(report.ended_from)} to {iso(report.ended_until)}"
        longest = took(report.longest_wait * 1000)
        yield "sealed", f"{longest} after the end at most; nothing is proven about the time before"
    if report.checkpoints:
        yield "pruned", f"{counted(report.pruned, 'execution')}, by {counted(report.checkpoints, 'checkpoint')}"
    if report.unsealed:
        yield "not sealed yet", f"{report.unsealed:,}, of which the oldest ended {iso(report.oldest_unsealed)}"
    if report.head is not None:
        yield "chain", f"{counted(report.batches, 'batch', 'batches')}, the last sealed {iso(report.head.sealed_at)}"
