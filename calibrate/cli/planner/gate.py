"""``scorepin gate``: what became of a branch at the commit gate, and why.

Results go to standard output, errors to standard error. Exit status: 0 the branch was found,
whatever became of it; 2 the call must be mended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from calibrate.cli.call import errors_told
from calibrate.cli.planner.store import require_store
from harness.codec import canonical_bytes
from harness.errors import InputFileError
from harness.planner.branch import Branch, ResourceVersion, reads_of
from harness.planner.gate_records import Detail, Filed, LoggedMove
from harness.planner.gate_table import State
from harness.planner.ruling import ADVICE, StaleRead
from harness.records.document import Record

if TYPE_CHECKING:
    from harness.planner.commit_store import CommitStore

__all__ = ["app"]


BranchName = Annotated[str, typer.Argument(metavar="BRANCH", help="Id of the branch.")]
StoreUrl = Annotated[str, typer.Option("--store", help="URL of the store: sqlite:///planner.db.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]

app = typer.Typer(
    name="gate",
    help="Say what became of a branch at the commit gate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _group() -> None:
    """Say what became of a branch at the commit gate."""


class Shown(Record, frozen=True, kw_only=True):
    """Everything that the gate knows of a branch."""

    branch: Branch
    """As last filed."""
    state: State
    """Where it stands."""
    moves: tuple[LoggedMove, ...]
    """How it came there, oldest first."""


class Reason(Record, frozen=True, kw_only=True):
    """Why a branch is where it is."""

    branch_id: str
    """The branch."""
    state: State
    """Where it stands."""
    detail: Detail
    """The finding of its last move."""


@app.command()
def show(branch: BranchName, store: StoreUrl, *, as_json: AsJson = False) -> None:
    """Print a branch: its state, what it read and writes, and its moves."""
    with errors_told(), _opened(store) as opened:
        filed = _found(opened, branch, store)
        shown = Shown(branch=filed.branch, state=filed.state, moves=tuple(opened.moves(branch)))
        _print(shown, _shown_lines(shown), as_json=as_json)


@app.command()
def why(branch: BranchName, store: StoreUrl, *, as_json: AsJson = False) -> None:
    """Print why a branch was refused, why it is held, or what its rollback left."""
    with errors_told(), _opened(store) as opened:
        filed = _found(opened, branch, store)
        reason = Reason(branch_id=branch, state=filed.state, detail=filed.detail)
        _print(reason, _reason_lines(reason), as_json=as_json)


@contextmanager
def _opened(url: str) -> "Iterator[CommitStore]":
    from harness.planner.commit_store import CommitStore  # noqa: PLC0415 - SQLAlchemy

    require_store(url)
    store = CommitStore.open(url)
    try:
        yield store
    finally:
        store.close()


def _found(store: "CommitStore", branch_id: str, url: str) -> Filed:
    filed = store.branch(branch_id)
    if filed is None:
        raise InputFileError(f"{url}: holds no branch {branch_id!r}; check the id")
    return filed


def _print(record: Record, lines: Iterator[str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(canonical_bytes(record))
        return
    for line in lines:
        typer.echo(_printable(line))


def _printable(line: str) -> str:
    """Show control characters, which would steer a terminal, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _shown_lines(shown: Shown) -> Iterator[str]:
    branch = shown.branch
    yield f"{branch.branch_id}: {shown.state}"
    yield f"decision  {branch.decision_id}"
    yield f"verdict   {_verdict(branch)}"
    yield f"steps     {len(branch.steps)}"
    for read in reads_of(branch):
        yield f"reads     {read.resource} at {_version(read.version)}"
    for resource, content in branch.write_set.items():
        yield f"writes    {resource}, {_size(content)}"
    yield "moves"
    for move in shown.moves:
        commit = f" in commit {move.commit_id}" if move.commit_id else ""
        yield f"  {move.position}  {move.event} -> {move.state}{commit}"


def _verdict(branch: Branch) -> str:
    verdict = branch.verdict
    if verdict is None:
        return "none yet"
    score = "" if verdict.score is None else f", score {verdict.score!r}"
    note = f": {verdict.note}" if verdict.note else ""
    return f"{'accepted' if verdict.accepted else 'not accepted'}{score}{note}"


def _version(version: ResourceVersion | None) -> str:
    return "no version" if version is None else str(version)


def _size(content: bytes | None) -> str:
    return "deleting it" if content is None else f"{len(content)} bytes"


def _reason_lines(reason: Reason) -> Iterator[str]:
    yield f"{reason.branch_id}: {reason.state}"
    detail = reason.detail
    if detail.refusal is not None:
        yield f"reason    {detail.refusal.reason}"
        yield from _read_lines(detail.refusal.reads)
        yield from (f"note      {note}" for note in [detail.refusal.note] if note)
        yield f"what now  {ADVICE[detail.refusal.reason]}"
    elif detail.stale:
        yield "reason    it must be verified again"
        yield from _read_lines(detail.stale)
    elif detail.rollback is not None:
        for resource, version in detail.rollback.undone.items():
            yield f"undone    {resource}, now {_version(version)}"
        for kept in detail.rollback.kept:
            yield f"left      {kept.resource}: {kept.reason}"
    else:
        yield "nothing stands against it"


def _read_lines(reads: tuple[StaleRead, ...]) -> Iterator[str]:
    for read in reads:
        yield f"resource  {read.resource}"
        yield f"  verified  {_version(read.verified)}, by branch {read.read_by}"
        writer = f", written by branch {read.written_by}" if read.written_by else ""
        yield f"  found     {_version(read.found)}{writer}"
