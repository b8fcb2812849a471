"""Decides how the gate's branches, commits and writes stand in a database, and how they change.

Rules kept here:

* one `transact` is one serialisable transaction: the gate's decision, the rows it writes, the
  commit record of the score verdict and the log line are kept together or not at all;
* a commit id, a branch's commit, and a generation of a resource are keys: none can be there twice;
* the log only grows.

It does not decide: the rules stand in `harness.planner.ruling`, the moves in `gate_table`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    bindparam,
    delete,
    insert,
    or_,
    select,
    update,
)

from harness.codec import decode, encode, parse
from harness.planner.branch import Branch, Read, ResourceVersion
from harness.planner.database import METADATA, Schema, in_transaction, open_database, reading
from harness.planner.gate_records import (
    CommitOutcome,
    CommittedRead,
    Detail,
    Filed,
    Head,
    Intent,
    LoggedMove,
    Write,
)
from harness.planner.gate_table import Event, State, move
from harness.planner.resources.row import ROWS
from harness.planner.statement import Statement
from harness.records.commit import CommitRecord

__all__ = ["SCHEMA", "CommitStore", "GateTransaction"]

T = TypeVar("T")

COUNTER = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up by itself only in a column of type INTEGER."""

BRANCHES = Table(
    "planner_branches",
    METADATA,
    Column("branch_id", String, primary_key=True),
    Column("decision_id", String, nullable=False, index=True),
    Column("state", String, nullable=False),
    Column("branch", LargeBinary, nullable=False),
    Column("detail", LargeBinary, nullable=False),
)
COMMITS = Table(
    "planner_commits",
    METADATA,
    Column("commit_id", String, primary_key=True),
    Column("branch_id", String, nullable=False, unique=True),
    Column("request_digest", String, nullable=False),
    Column("versions", LargeBinary, nullable=False),
    Column("record", LargeBinary),
)
HEADS = Table(
    "planner_heads",
    METADATA,
    Column("resource", String, primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("content_of", Integer, nullable=False),
    Column("branch_id", String, nullable=False),
)
WRITES = Table(
    "planner_writes",
    METADATA,
    Column("resource", String, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("branch_id", String, nullable=False, index=True),
    Column("commit_id", String, nullable=False),
    Column("before", LargeBinary),
    Column("before_token", String, nullable=False),
    Column("token", String, nullable=False),
    Column("content_of", Integer, nullable=False),
    Column("replaced", Integer, nullable=False),
)
READS = Table(
    "planner_reads",
    METADATA,
    Column("branch_id", String, primary_key=True),
    Column("resource", String, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("token", String, nullable=False),
    Index("planner_reads_by_resource", "resource", "generation"),
)
INTENTS = Table(
    "planner_intents",
    METADATA,
    Column("commit_id", String, primary_key=True),
    Column("intent", LargeBinary, nullable=False),
)
LOG = Table(
    "planner_gate_log",
    METADATA,
    Column("position", COUNTER, primary_key=True),
    Column("branch_id", String, nullable=False, index=True),
    Column("event", String, nullable=False),
    Column("state", String, nullable=False),
    Column("commit_id", String, nullable=False),
    Column("detail", LargeBinary, nullable=False),
    implicit_returning=False,
)

NUM_AT_ONCE = 32
"""Resources that one statement looks up."""

TABLES = [BRANCHES, COMMITS, HEADS, WRITES, READS, INTENTS, LOG, ROWS]


def _create(connection: Connection) -> None:
    METADATA.create_all(connection, tables=TABLES, checkfirst=False)


SCHEMA = Schema(name="gate", steps=(_create,))
"""1: the tables above."""

FAMILY = Statement(
    select(BRANCHES).where(
        or_(
            BRANCHES.c.decision_id == bindparam("decision"),
            BRANCHES.c.branch_id == bindparam("branch"),
        )
    )
)
COMMIT_OF = Statement(select(COMMITS).where(COMMITS.c.commit_id == bindparam("commit")))
INTENT_ROWS = Statement(select(INTENTS).order_by(INTENTS.c.commit_id))
WRITES_OF = Statement(
    select(WRITES)
    .where(WRITES.c.branch_id == bindparam("branch"), WRITES.c.content_of == WRITES.c.generation)
    .order_by(WRITES.c.resource)
)
WRITE_AT = Statement(
    select(WRITES).where(
        WRITES.c.resource == bindparam("of"), WRITES.c.generation == bindparam("at")
    )
)
READERS = Statement(
    select(READS.c.branch_id)
    .join(BRANCHES, BRANCHES.c.branch_id == READS.c.branch_id)
    .where(
        READS.c.resource == bindparam("of"),
        READS.c.generation >= bindparam("since"),
        READS.c.branch_id != bindparam("but"),
        BRANCHES.c.state == bindparam("committed"),
    )
    .order_by(READS.c.branch_id)
)
NEW_BRANCH = Statement(insert(BRANCHES))
NEW_COMMIT = Statement(insert(COMMITS))
NEW_HEAD = Statement(insert(HEADS))
NEW_WRITE = Statement(insert(WRITES))
NEW_READ = Statement(insert(READS))
NEW_INTENT = Statement(insert(INTENTS))
NEW_LINE = Statement(insert(LOG).inline())
DONE_INTENT = Statement(delete(INTENTS).where(INTENTS.c.commit_id == bindparam("commit")))
FILE_AGAIN = Statement(
    update(BRANCHES)
    .where(BRANCHES.c.branch_id == bindparam("id"))
    .values(state=bindparam("new_state"), branch=bindparam("new"), detail=bindparam("new_detail"))
)
ADVANCE = Statement(
    update(HEADS)
    .where(HEADS.c.resource == bindparam("of"), HEADS.c.generation == bindparam("seen"))
    .values(generation=bindparam("new"), content_of=bindparam("content"), branch_id=bindparam("by"))
)


@cache
def _heads_of(num_resources: int) -> Statement:
    names: list[Any] = [bindparam(f"name_{number}") for number in range(num_resources)]
    return Statement(select(HEADS).where(HEADS.c.resource.in_(names)))


class CommitStore:
    """The gate's memory, in one database."""

    def __init__(self, engine: Engine) -> None:
        """Use an engine whose tables are up to date for `SCHEMA`."""
        self.engine = engine

    @classmethod
    def open(cls, url: str) -> "CommitStore":
        """Open, and if need be create, the store at a database URL.

        Raises ConfigError, StoreError or SchemaVersionError, as `open_database` does.
        """
        return cls(open_database(url, SCHEMA))

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()

    def transact(self, work: Callable[["GateTransaction"], T]) -> T:
        """Run `work` in one transaction, from its beginning again when that loses a race."""

        def run(connection: Connection) -> T:
            transaction = GateTransaction(connection)
            result = work(transaction)
            transaction.flush()
            return result

        return in_transaction(self.engine, run)

    def branch(self, branch_id: str) -> Filed | None:
        """Return a branch as filed, or None."""
        with reading(self.engine) as connection:
            return GateTransaction(connection).family("", branch_id).get(branch_id)

    def branches(self, decision_id: str) -> list[Filed]:
        """Return the branches of a decision, by id."""
        with reading(self.engine) as connection:
            family = GateTransaction(connection).family(decision_id)
        return [family[name] for name in sorted(family)]

    def generation(self, resource_id: str) -> int:
        """Return how many writes the gate has made to a resource."""
        with reading(self.engine) as connection:
            return GateTransaction(connection).heads([resource_id])[resource_id].generation

    def record(self, commit_id: str) -> CommitRecord | None:
        """Return the score verdict's commit record that was kept with a commit, if one was."""
        with reading(self.engine) as connection:
            rows = COMMIT_OF.rows(connection, commit=commit_id)
        if not rows or rows[0].record is None:
            return None
        where = f"commit {commit_id!r}"
        return decode(CommitRecord, parse(rows[0].record, where), where)

    def moves(self, branch_id: str | None = None) -> list[LoggedMove]:
        """Return the log, oldest first; of one branch or of all."""
        query = select(LOG).order_by(LOG.c.position)
        wanted = query if branch_id is None else query.where(LOG.c.branch_id == branch_id)
        with reading(self.engine) as connection:
            rows = connection.execute(wanted).all()
        return [_record(LoggedMove, row, detail=_packed(row.detail, Detail)) for row in rows]

    def commits(self) -> list[CommitOutcome]:
        """Return every commit that was made, by id."""
        with reading(self.engine) as connection:
            rows = connection.execute(select(COMMITS).order_by(COMMITS.c.commit_id)).all()
        return [_outcome(row) for row in rows]

    def writes(self) -> list[Write]:
        """Return every write through the gate, by resource and generation."""
        query = select(WRITES).order_by(WRITES.c.resource, WRITES.c.generation)
        with reading(self.engine) as connection:
            return [_record(Write, row) for row in connection.execute(query)]

    def reads(self) -> list[CommittedRead]:
        """Return every read that a commit rested on, by resource and generation."""
        query = select(READS).order_by(READS.c.resource, READS.c.generation, READS.c.branch_id)
        with reading(self.engine) as connection:
            return [_record(CommittedRead, row) for row in connection.execute(query)]

    def intents(self) -> list[Intent]:
        """Return the commits that were decided and are not done."""
        with reading(self.engine) as connection:
            return GateTransaction(connection).intents()


class GateTransaction:
    """What the gate reads and writes inside one transaction; moves are written at its end."""

    def __init__(self, connection: Connection) -> None:
        """Use `connection`, whose transaction others begin and end."""
        self.connection = connection
        self._known: set[str] = set()
        self._moved: dict[str, Filed] = {}
        self._log: list[dict[str, Any]] = []

    def family(self, decision_id: str, branch_id: str = "") -> dict[str, Filed]:
        """Return branch id -> branch as filed: all of the decision, and the one named."""
        rows = FAMILY.rows(self.connection, decision=decision_id, branch=branch_id)
        self._known.update(row.branch_id for row in rows)
        return {row.branch_id: _filed(row) for row in rows}

    def move(
        self, filed: Filed, event: Event, commit_id: str = "", detail: Detail | None = None
    ) -> Filed:
        """Make one move of the table; return the branch as it then is.

        Raises IllegalMoveError when the table has no such move.
        """
        detail = detail or Detail()
        state = move(filed.state, event, filed.branch.branch_id)
        self._log.append(
            {
                "branch_id": filed.branch.branch_id,
                "event": str(event),
                "state": str(state),
                "commit_id": commit_id,
                "detail": _pack(detail),
            }
        )
        moved = Filed(branch=filed.branch, state=state, detail=detail)
        self._moved[filed.branch.branch_id] = moved
        return moved

    def heads(self, resources: Iterable[str]) -> dict[str, Head]:
        """Return resource id -> head, for each of `resources`."""
        names = list(resources)
        found = {}
        for part in _parts(names):
            sought = {f"name_{number}": name for number, name in enumerate(part)}
            for row in _heads_of(len(part)).rows(self.connection, **sought):
                found[row.resource] = _record(Head, row)
        return {name: found.get(name, Head()) for name in names}

    def put_write(self, write: Write) -> None:
        """Keep a write, and make it the head of its resource."""
        NEW_WRITE.change(self.connection, **msgspec.structs.asdict(write))
        if write.generation == 1:
            head = Head(generation=1, content_of=write.content_of, branch_id=write.branch_id)
            fields = {"resource": write.resource, **msgspec.structs.asdict(head)}
            NEW_HEAD.change(self.connection, **fields)
        else:
            ADVANCE.change(
                self.connection,
                of=write.resource,
                seen=write.generation - 1,
                new=write.generation,
                content=write.content_of,
                by=write.branch_id,
            )

    def put_commit(
        self, outcome: CommitOutcome, reads: Iterable[Read], record: bytes | None
    ) -> None:
        """Keep a commit, what it rested on, and the score verdict's record."""
        fields = msgspec.structs.asdict(outcome)
        fields |= {"versions": _pack(outcome.versions), "record": record}
        NEW_COMMIT.change(self.connection, **fields)
        for read in reads:
            NEW_READ.change(self.connection, **_read_row(outcome.branch_id, read))

    def outcome(self, commit_id: str) -> CommitOutcome | None:
        """Return what a commit id stands for, if it was committed."""
        rows = COMMIT_OF.rows(self.connection, commit=commit_id)
        return _outcome(rows[0]) if rows else None

    def writes_of(self, branch_id: str) -> list[Write]:
        """Return the writes of a branch's commit, without those that took some back."""
        rows = WRITES_OF.rows(self.connection, branch=branch_id)
        return [_record(Write, row) for row in rows]

    def write_at(self, resource: str, generation: int) -> Write:
        """Return one write, which must be there."""
        (row,) = WRITE_AT.rows(self.connection, of=resource, at=generation)
        return _record(Write, row)

    def readers(self, resource: str, since: int, but: str) -> list[str]:
        """Return the committed branches, except `but`, that read `resource` since a generation."""
        sought = {"of": resource, "since": since, "but": but, "committed": str(State.COMMITTED)}
        rows = READERS.rows(self.connection, **sought)
        return list(dict.fromkeys(row.branch_id for row in rows))

    def intents(self) -> list[Intent]:
        """Return the commits that were decided and are not done."""
        rows = INTENT_ROWS.rows(self.connection)
        return [decode(Intent, parse(row.intent, row.commit_id), row.commit_id) for row in rows]

    def put_intent(self, intent: Intent) -> None:
        """Keep a decided commit until it is done."""
        NEW_INTENT.change(self.connection, commit_id=intent.commit_id, intent=encode(intent))

    def close_intent(self, commit_id: str) -> None:
        """Forget a commit that is done, or given up."""
        DONE_INTENT.change(self.connection, commit=commit_id)

    def flush(self) -> None:
        """Write what moved."""
        for name, filed in self._moved.items():
            state, branch = str(filed.state), encode(filed.branch)
            detail = _pack(filed.detail)
            if name in self._known:
                FILE_AGAIN.change(
                    self.connection, id=name, new_state=state, new=branch, new_detail=detail
                )
            else:
                NEW_BRANCH.change(
                    self.connection,
                    branch_id=name,
                    decision_id=filed.branch.decision_id,
                    state=state,
                    branch=branch,
                    detail=detail,
                )
        for line in self._log:
            NEW_LINE.change(self.connection, **line)


def _parts(names: list[str]) -> Iterator[list[str]]:
    """Cut names into lists of at most `NUM_AT_ONCE`."""
    for start in range(0, len(names), NUM_AT_ONCE):
        yield names[start : start + NUM_AT_ONCE]


def _pack(value: object) -> bytes:
    return msgspec.json.encode(value)


def _packed(data: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(data, type=kind)


def _record(kind: type[T], row: Any, **changes: Any) -> T:
    """Build a record from the columns of the same names."""
    fields = {name: getattr(row, name) for name in kind.__struct_fields__ if name not in changes}  # type: ignore[attr-defined]
    return msgspec.convert({**fields, **changes}, kind)


def _filed(row: Any) -> Filed:
    where = f"branch {row.branch_id!r}"
    branch = decode(Branch, parse(row.branch, where), where)
    return Filed(branch=branch, state=State(row.state), detail=_packed(row.detail, Detail))


def _outcome(row: Any) -> CommitOutcome:
    versions = _packed(row.versions, dict[str, ResourceVersion])
    return CommitOutcome(
        commit_id=row.commit_id,
        branch_id=row.branch_id,
        request_digest=row.request_digest,
        versions=versions,
    )


def _read_row(branch_id: str, read: Read) -> dict[str, object]:
    version = read.version
    if version is None:  # the gate refuses these; a row of zeros would claim a version
        raise ValueError(f"{read.resource} was committed without a version")
    fields = {"branch_id": branch_id, "resource": read.resource}
    return {**fields, "generation": version.generation, "token": version.token}
