"""Decides, from what a gate's store holds after a run, whether the gate kept its promises.

Writers append ``<branch id>\\n`` to what they read. So every content tells who was there before,
and a lost update shows in the bytes, whatever the version counters say. Checked:

* generations have no gaps; each write replaced the version before it, and appended its line to it;
* each commit was verified against exactly the generation that it replaced;
* no branch and no commit id was committed twice, and none that a writer was told of is missing;
* the commits can be put in one order in which each saw what was there (no cycle of reads and
  writes): they are serialisable;
* every refused or held branch has its reason, and the reason is true;
* a branch that was rolled back, and fully undone, is in no content; a committed one is in each that
  it wrote, once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from harness.planner.commit_store import CommitStore
from harness.planner.gate_records import CommitOutcome, CommittedRead, LoggedMove, Write
from harness.planner.gate_table import Event
from harness.planner.resources.row import RowResource
from harness.records.document import Record


class History(Record, frozen=True, kw_only=True):
    """Everything that a run left behind."""

    commits: list[CommitOutcome]
    writes: list[Write]
    reads: list[CommittedRead]
    moves: list[LoggedMove]
    contents: dict[str, bytes]
    told: set[str] = set()
    """Commit ids that a writer was told are committed."""


def history_of(store: CommitStore, told: Iterable[str] = ()) -> History:
    writes = store.writes()
    names = {write.resource for write in writes}
    rows = {name: RowResource(store.engine, name.rpartition("/")[2]) for name in names}
    return History(
        commits=store.commits(),
        writes=writes,
        reads=store.reads(),
        moves=store.moves(),
        contents={name: row.read().content or b"" for name, row in rows.items()},
        told=set(told),
    )


def violations(history: History) -> list[str]:
    """Return what is wrong, in words; empty when nothing is."""
    return [
        *_chains(history),
        *_verified_versions(history),
        *_commits(history),
        *_order(history),
        *_reasons(history),
        *_contents(history),
    ]


def _by_resource(history: History) -> dict[str, list[Write]]:
    chains: dict[str, list[Write]] = defaultdict(list)
    for write in history.writes:
        chains[write.resource].append(write)
    return chains


def _chains(history: History) -> Iterator[str]:
    for name, chain in _by_resource(history).items():
        if [w.generation for w in chain] != list(range(1, len(chain) + 1)):
            yield f"{name}: generations {[w.generation for w in chain]} have gaps"
            continue
        contents = [w.before or b"" for w in chain] + [history.contents[name]]
        for write, (before, after) in zip(chain, pairwise(contents), strict=True):
            expected = before + f"{write.branch_id}\n".encode()
            if write.content_of != write.generation:
                expected = contents[write.content_of]
            if after != expected:
                yield f"{name}: {write.branch_id} at {write.generation} lost an update"
        for earlier, later in pairwise(chain):
            if earlier.token != later.before_token:
                yield f"{name}: generation {later.generation} replaced another version"


def _verified_versions(history: History) -> Iterator[str]:
    seen = {(r.branch_id, r.resource, r.generation) for r in history.reads}
    for write in history.writes:
        verified = (write.branch_id, write.resource, write.generation - 1)
        if write.content_of == write.generation and verified not in seen:
            yield f"{write.resource}: {write.branch_id} was not verified against what it replaced"


def _commits(history: History) -> Iterator[str]:
    events = [move for move in history.moves if move.event is Event.COMMIT]
    for what, names in (
        ("branch", [move.branch_id for move in events]),
        ("commit", [move.commit_id for move in events]),
    ):
        yield from (
            f"{what} {n} was committed {k} times" for n, k in Counter(names).items() if k > 1
        )
    kept = {commit.commit_id for commit in history.commits}
    yield from (f"commit {name} was told and is not there" for name in sorted(history.told - kept))
    if kept != {move.commit_id for move in events}:
        yield "the log and the commits disagree"


def _order(history: History) -> Iterator[str]:
    """Find a cycle of: wrote before it was read; read before it was replaced."""
    writer = {
        (w.resource, w.generation): f"{w.branch_id}/{w.generation != w.content_of}"
        for w in history.writes
    }
    after: dict[str, set[str]] = defaultdict(set)
    for (name, generation), who in writer.items():
        after[who].add(writer.get((name, generation - 1), who))
    for read in history.reads:
        reader = f"{read.branch_id}/{False}"
        after[reader].add(writer.get((read.resource, read.generation), reader))
        after[writer.get((read.resource, read.generation + 1), reader)].add(reader)
    try:
        TopologicalSorter({who: before - {who} for who, before in after.items()}).prepare()
    except CycleError as error:
        yield f"no order explains the commits: {' -> '.join(error.args[1])}"


def _reasons(history: History) -> Iterator[str]:
    writer = {(w.resource, w.generation): w.branch_id for w in history.writes}
    for move in history.moves:
        if move.event not in (Event.REFUSE, Event.FIND_STALE):
            continue
        refusal = move.detail.refusal
        reads = refusal.reads if refusal is not None else move.detail.stale
        if not reads:
            yield f"{move.branch_id}: {move.event} without a reason"
        for read in reads:
            if read.verified is None or read.found is None or read.verified == read.found:
                yield f"{move.branch_id}: {read} is no reason"
            elif writer.get((read.resource, read.found.generation)) != read.written_by:
                yield f"{move.branch_id}: {read} names the wrong writer"


def _contents(history: History) -> Iterator[str]:
    wrote: Mapping[str, set[str]] = defaultdict(set)
    for write in history.writes:
        if write.content_of == write.generation:
            wrote[write.branch_id].add(write.resource)
    undone = _undone(history)
    for branch_id, names in wrote.items():
        for name in names:
            expected = 0 if name in undone.get(branch_id, ()) else 1
            found = history.contents[name].split(b"\n").count(branch_id.encode())
            if found != expected:
                yield f"{name}: {branch_id} stands there {found} times, not {expected}"


def _undone(history: History) -> dict[str, Any]:
    reports = (move.detail.rollback for move in history.moves)
    return {report.branch_id: report.undone.keys() for report in reports if report is not None}
