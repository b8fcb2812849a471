"""Scores decisions on a recording server and replays them, pinned.

Each branch is a request under an id of its own. When all have answered, the server says in which
steps they were, and that is the commit's membership: observed, not asked for.

A replay asks the server to be pinned to the commit's steps, sends the same rows, the companions
out of the item store, and reads back what really ran. Rules kept here:

* what cannot be pinned is said in the replay's notes; its membership is the one that ran, so a
  judge sees the difference by itself;
* a companion that is not in the item store is replaced, by tokens as many, only where a tolerance
  certifies that a companion's content does not matter (`Equivalence.SHAPE`); else there is no pin.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harness.errors import InputFileError, InvalidRecordError
from harness.judge.ranking import winner
from harness.records.commit import CommitRecord, ReplayRecord, commit_id_of
from harness.records.decision import Decision, Item
from harness.records.document import Record
from harness.records.invocation import Invocation
from harness.records.membership import BatchMembership, Slot
from harness.records.scores import to_wire
from harness.records.tolerance import Equivalence
from harness.records.verifier import VerifierSpec
from harness.serving.connection import Connection
from harness.serving.pin import PinEnd, PinOutcome
from harness.serving.pin_plan import PinPlan, PlannedRequest, plan_of_steps
from harness.serving.row_request import Reading, row_request, row_score, row_text, words_of
from harness.serving.server_build import (
    ServerBuild,
    build_of,
    precision_of,
    reduction_order_of,
)
from harness.verifiers.heads import score_unit

__all__ = ["ScoredOnServer", "ServingClient"]

_STAND_IN_TOKEN = 3
_POLL_S = 0.05


class ScoredOnServer(Record, frozen=True, kw_only=True):
    """What scoring one decision gives."""

    commit: CommitRecord
    """With the membership that the server observed."""
    items: tuple[Item, ...]
    """The text behind the content digest of each of its branches."""


class _Row(Record, frozen=True, kw_only=True):
    """One request that was answered."""

    request_id: str
    score: float


class ServingClient:
    """Scores and replays on one server, as one verifier."""

    def __init__(self, connection: Connection, model: str, verifier: VerifierSpec) -> None:
        """Name the server's model, and the verifier whose prompt and head are used.

        Raises UnsupportedConditionError for a head that cannot be read off a server.
        """
        self._connection, self._model, self._verifier = connection, model, verifier
        self._words = words_of(verifier.head)
        self._reading = Reading(num_reasoning=verifier.reasoning_tokens)
        self._token_ids: tuple[int, ...] | None = None
        self._server: ServerBuild | None = None

    async def server(self) -> ServerBuild:
        """Return what the server is; asked once."""
        if self._server is None:
            body = await self._connection.get("/scorepin/build")
            self._server = msgspec.convert(body, ServerBuild)
        return self._server

    async def score(self, decision: Decision, *, committed: bool = True) -> ScoredOnServer:
        """Score every branch of `decision` and return its commit record.

        Raises InvalidRecordError for a score that is not finite, and what `Connection` raises.
        """
        await self.server()
        texts = {
            branch.branch_id: row_text(self._verifier.prompt, decision.context, branch.text)
            for branch in decision.branches
        }
        names = {branch_id: _new_name() for branch_id in texts}
        rows = await self._rows({names[one]: text for one, text in texts.items()})
        scored = dict(zip(texts, rows, strict=True))
        membership = await self._membership(
            {row.request_id: branch_id for branch_id, row in scored.items()}
        )
        scores = {branch_id: row.score for branch_id, row in scored.items()}
        invocation = await self._invocation(membership)
        commit = CommitRecord(
            commit_id=commit_id_of(decision.decision_id, scores, invocation),
            decision_id=decision.decision_id,
            scores=scores,
            invocation=invocation,
            committed=committed,
            winner=winner(scores),
            score_unit=score_unit(self._verifier.head),
        )
        return ScoredOnServer(commit=commit, items=_items(decision, membership))

    async def replay(
        self,
        commit: CommitRecord,
        items: Mapping[str, Item],
        equivalence: Equivalence = Equivalence.EXACT,
        *,
        wait_s: float = 10.0,
        replica: str = "",
    ) -> ReplayRecord:
        """Compute a commit again with the same requests in the same steps.

        The connection should have room for all of them at once; with less, a step that needs more
        is never complete, and the pin ends after `wait_s`.

        Raises InputFileError when a branch's own text is not in the item store.
        """
        recorded = commit.invocation.batch_membership
        names = {slot.request_id: _new_name() for slot in _slots(recorded)}
        prompts = {
            names[slot.request_id]: self._prompt(slot, recorded, items, equivalence)
            for slot in _slots(recorded)
        }
        missing = [name for name, prompt in prompts.items() if prompt is None]
        sent = {name: prompt for name, prompt in prompts.items() if prompt is not None}
        branches = {
            names[slot.request_id]: slot.branch_id
            for slot in _slots(recorded)
            if slot.branch_id is not None
        }
        if missing:
            notes: tuple[str, ...] = (f"{len(missing)} companions are not in the item store",)
            rows = await self._rows({name: sent[name] for name in branches})
        else:
            plan = _plan(recorded, names, sent, wait_s)
            if len(sent) > self._connection.num_connections:  # they cannot all be there at once
                plan = msgspec.structs.replace(plan, gather=False)
            await self._connection.post("/scorepin/pin", msgspec.to_builtins(plan))
            rows = await self._rows(sent)
            notes = _notes(await self._outcome(plan))
        return await self._replay_record(
            commit, {row.request_id: row.score for row in rows}, branches, notes, replica
        )

    async def _replay_record(
        self,
        commit: CommitRecord,
        scores: Mapping[str, float],
        branches: Mapping[str, str],
        notes: tuple[str, ...],
        replica: str,
    ) -> ReplayRecord:
        answered = {name.partition(".")[0]: name for name in scores}  # behind the dot: the attempt
        own = {answered[name]: branch_id for name, branch_id in branches.items()}
        membership = await self._membership(own)
        return ReplayRecord(
            commit_id=commit.commit_id,
            decision_id=commit.decision_id,
            scores=to_wire({branch_id: scores[name] for name, branch_id in own.items()}),
            invocation=await self._invocation(membership),
            replica=replica,
            notes=notes,
        )

    def _prompt(
        self,
        slot: Slot,
        recorded: BatchMembership,
        items: Mapping[str, Item],
        equivalence: Equivalence,
    ) -> str | list[int] | None:
        """Return the prompt of a recorded slot, a stand-in for it, or None."""
        item = items.get(slot.content_digest)
        if item is not None:
            return row_text(self._verifier.prompt, item.context, item.text)
        if slot.branch_id is not None:
            advice = "its text is not in the item store, so it cannot be replayed"
            raise InputFileError(f"branch {slot.branch_id!r}: {advice}")
        if equivalence is Equivalence.SHAPE:
            return [_STAND_IN_TOKEN] * _reach(recorded, slot.request_id)
        return None

    async def _rows(self, prompts: Mapping[str, str | list[int]]) -> list[_Row]:
        """Send every prompt at once, each under its name; return what came, in that order."""
        token_ids = await self._tokens()
        return list(
            await asyncio.gather(
                *(self._row(name, prompt, token_ids) for name, prompt in prompts.items())
            )
        )

    async def _row(self, name: str, prompt: str | list[int], token_ids: Sequence[int]) -> _Row:
        head = self._verifier.head
        special = self._verifier.prompt.add_special_tokens
        request = row_request(
            head, prompt, token_ids, add_special_tokens=special, reading=self._reading
        )
        body = {"model": self._model, **request.body}
        answer = await self._connection.post(request.path, body, name)
        score = row_score(head, answer.body, token_ids, self._reading)
        return _Row(request_id=answer.request_id, score=score)

    async def _tokens(self) -> tuple[int, ...]:
        if self._token_ids is None:
            found = await asyncio.gather(*(self._token(word) for word in self._words))
            self._token_ids = tuple(found)
        return self._token_ids

    async def _token(self, word: str) -> int:
        body = {"model": self._model, "prompt": word, "add_special_tokens": False}
        tokens = (await self._connection.post("/tokenize", body)).body["tokens"]
        if len(tokens) != 1:
            raise InputFileError(f"head: {word!r} is {len(tokens)} tokens here, not one")
        return int(tokens[0])

    async def _membership(self, branches: Mapping[str, str]) -> BatchMembership:
        params = [("request", request_id) for request_id in branches]
        body = await self._connection.get("/scorepin/membership", params)
        found = msgspec.convert(body, BatchMembership)
        return msgspec.structs.replace(
            found,
            steps=tuple(
                msgspec.structs.replace(
                    step,
                    slots=tuple(
                        msgspec.structs.replace(slot, branch_id=branches.get(slot.request_id))
                        for slot in step.slots
                    ),
                )
                for step in found.steps
            ),
        )

    async def _invocation(self, membership: BatchMembership) -> Invocation:
        server = await self.server()
        return Invocation(
            build=build_of(server, self._verifier),
            batch_membership=membership,
            precision_mode=precision_of(server.facts),
            reduction_order=reduction_order_of(server.facts),
        )

    async def _outcome(self, plan: PinPlan) -> PinOutcome | None:
        """Return how the pin ended; None if it is still not told, when all rows are answered."""
        for _ in range(int(plan.wait_s / _POLL_S) + 1):
            body = await self._connection.get(f"/scorepin/pin/{plan.pin_id}")
            if body["end"] is not None:
                return msgspec.convert(body, PinOutcome)
            await asyncio.sleep(_POLL_S)
        return None


def _plan(
    recorded: BatchMembership,
    names: Mapping[str, str],
    sent: Mapping[str, Any],
    wait_s: float,
) -> PinPlan:
    """Return the plan of a commit's steps; a prompt of token ids is a stand-in of any content."""
    digests = {slot.request_id: slot.content_digest for slot in _slots(recorded)}
    requests = {
        recorded_id: PlannedRequest(
            name=name,
            prompt_digest=digests[recorded_id] if isinstance(sent[name], str) else None,
        )
        for recorded_id, name in names.items()
    }
    return plan_of_steps(recorded, requests, pin_id=_new_name(), wait_s=wait_s)


def _slots(membership: BatchMembership) -> list[Slot]:
    """Return a slot of each request: its first, which goes by the digest of its prompt.

    Later ones go by the digest of what was generated, too.
    """
    found: dict[str, Slot] = {}
    for slot in (slot for step in membership.steps for slot in step.slots):
        found.setdefault(slot.request_id, slot)
    return list(found.values())


def _reach(membership: BatchMembership, request_id: str) -> int:
    """Return how many tokens of a request were computed in the end."""
    slots = (slot for step in membership.steps for slot in step.slots)
    return max(s.num_computed_tokens + s.num_tokens for s in slots if s.request_id == request_id)


def _items(decision: Decision, membership: BatchMembership) -> tuple[Item, ...]:
    texts = {branch.branch_id: branch.text for branch in decision.branches}
    digests: dict[str, str] = {}
    for slot in (slot for step in membership.steps for slot in step.slots):
        if slot.branch_id is not None:
            digests.setdefault(slot.branch_id, slot.content_digest)
    if digests.keys() != texts.keys():
        raise InvalidRecordError("the server's membership does not hold every branch")
    return tuple(
        Item(content_digest=digests[branch_id], context=decision.context, text=text)
        for branch_id, text in texts.items()
    )


def _notes(outcome: PinOutcome | None) -> tuple[str, ...]:
    if outcome is None:
        return ("the server did not say how the pin ended",)
    if outcome.end is PinEnd.COMPLETED:
        return ()
    return (f"the pin ended early ({outcome.end}): {outcome.detail}",)


def _new_name() -> str:
    return uuid.uuid4().hex
