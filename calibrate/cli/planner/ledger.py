"""``scorepin ledger``: where branches and drafts stand in a ledger, and why.

Results go to standard output, errors to standard error. Exit status: 0 the question was answered,
whatever the answer; 2 the call must be mended. Opening a ledger finishes a rollback that a crash
cut short; nothing else is changed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from calibrate.cli.call import errors_told
from calibrate.cli.planner.store import require_store
from harness.codec import canonical_bytes
from harness.planner.ledger import (
    BranchLedger,
    BranchState,
    BranchView,
    CacheKey,
    Draft,
    DraftDecision,
    DraftState,
    EntryView,
)

__all__ = ["app"]

COLOURS = {BranchState.DEAD: "red", BranchState.IN_FLIGHT: "yellow", BranchState.PROMOTED: "green"}

app = typer.Typer(
    name="ledger",
    help="Show what branches left in the caches, and what drafts depend on it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

StoreUrl = Annotated[str, typer.Option(help="URL of the store, such as sqlite:///planner.db.")]
LedgerId = Annotated[str, typer.Option("--ledger", help="Which ledger of the store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]


@app.callback()
def _group() -> None:
    """Show what branches left in the caches, and what drafts depend on it."""


@app.command()
def branch(
    branch_id: Annotated[str, typer.Argument(help="The branch.")],
    *,
    store: StoreUrl,
    ledger_id: LedgerId = "main",
    as_json: AsJson = False,
) -> None:
    """Print a branch: its state, cost, entries and drafts."""
    with _opened(store, ledger_id) as ledger:
        view = ledger.branch(branch_id)
        if as_json:
            typer.echo(canonical_bytes(view))
            return
        _print_branch(view)


@app.command()
def closure(
    draft_id: Annotated[str, typer.Argument(help="The draft.")],
    *,
    store: StoreUrl,
    ledger_id: LedgerId = "main",
    as_json: AsJson = False,
) -> None:
    """Print all that a draft depends on, as a tree of cache entries."""
    with _opened(store, ledger_id) as ledger:
        draft = _draft(ledger, draft_id)
        if as_json:
            keys = ledger.closure(draft).keys
            typer.echo(canonical_bytes([ledger.entry(key) for key in keys]))
            return
        _console().print(_tree(ledger, draft.key))


@app.command()
def why(
    draft_id: Annotated[str, typer.Argument(help="The draft.")],
    *,
    store: StoreUrl,
    ledger_id: LedgerId = "main",
    as_json: AsJson = False,
) -> None:
    """Print why a draft is accepted, held, unscored or rejected."""
    with _opened(store, ledger_id) as ledger:
        decision = ledger.decision(draft_id)
        if as_json:
            typer.echo(canonical_bytes(decision))
            return
        for line in _reason(ledger, decision):
            _console().print(_printable(line), markup=False, highlight=False)


@contextmanager
def _opened(url: str, ledger_id: str) -> Iterator[BranchLedger]:
    """Give the ledger at a URL; tell an error and leave."""
    from harness.planner.ledger.store import open_ledger  # noqa: PLC0415 - SQLAlchemy

    with errors_told():
        require_store(url)
        with open_ledger(url, ledger_id) as ledger:
            yield ledger


def _draft(ledger: BranchLedger, draft_id: str) -> Draft:
    ledger.decision(draft_id)  # refuses one that was never offered
    return next(one for one in ledger.drafts() if one.draft_id == draft_id)


def _print_branch(view: BranchView) -> None:
    console, account = _console(), view.account
    limit = "no limit" if account.limit is None else f"a limit of {account.limit}"
    returned = f", {account.returned} returned" if account.returned else ""
    words = f"{view.branch_id}: {view.state}; spent {account.spent} of {limit}{returned}"
    console.print(_printable(words), markup=False, highlight=False)
    entries = Table("entry", "evicted", "computed from", "read by", title="Entries")
    for entry in view.entries:
        evicted = "yes" if entry.evicted else "no"
        sources, readers = _listed(entry.sources), _listed(entry.readers)
        entries.add_row(_label(entry.key), evicted, sources, readers)
    if view.entries:
        console.print(entries)
    drafts = Table("draft", "state", "finding", "waits for", title="Drafts")
    for one in view.drafts:
        cells = one.draft_id, one.state, one.finding, ", ".join(one.waits_for)
        drafts.add_row(*(Text(_printable(cell)) for cell in cells))
    if view.drafts:
        console.print(drafts)


def _tree(ledger: BranchLedger, root: CacheKey) -> Tree:
    """Return the closure as a tree; an entry that was opened above is not opened again."""
    tree = Tree("", hide_root=True)
    seen: set[CacheKey] = set()
    todo = [(root, tree)]
    while todo:
        key, parent = todo.pop()
        entry = ledger.entry(key)
        label = _described(entry)
        if key in seen and entry.sources:
            parent.add(label.append(" (see above)", style="dim"))
            continue
        node = parent.add(label)
        todo += [(source, node) for source in reversed(entry.sources)]
        seen.add(key)
    return tree


def _described(entry: EntryView) -> Text:
    state = entry.branch_state
    words = "shared" if state is None else str(state)
    label = _label(entry.key).append("  ")
    label.append(words, style="" if state is None else COLOURS[state])
    return label.append(", evicted", style="red") if entry.evicted else label


def _reason(ledger: BranchLedger, decision: DraftDecision) -> Iterator[str]:
    yield f"{decision.draft_id}: {decision.state} ({decision.finding})"
    if decision.state is DraftState.HELD:
        yield "It is decided when these branches resolve:"
        draft = _draft(ledger, decision.draft_id)
        for branch_id in decision.waits_for:
            path = ledger.path_to_branch(draft, branch_id)
            yield f"  {branch_id}: {' reads '.join(map(str, path))}"
    elif decision.state is DraftState.REJECTED:
        yield f"It depends on branch {decision.path[-1].branch_id}, which was rolled back:"
        yield f"  {' reads '.join(map(str, decision.path))}"
    elif decision.state is DraftState.UNSCORED:
        yield "Its score was computed on another closure. Verify it again on"
        yield f"  {decision.closure_digest}"
    else:
        yield "It depends on no dead branch, and on no other branch in flight."


def _listed(keys: tuple[CacheKey, ...]) -> Text:
    return Text("\n").join(_label(key) for key in keys)


def _label(key: CacheKey) -> Text:
    return Text(_printable(str(key)))


def _printable(text: str) -> str:
    """Return text that cannot steer a terminal: names come from whoever wrote to the ledger."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _console() -> Console:
    return Console(soft_wrap=True)
