"""Decides what each branch may still spend, and what a rollback gives back.

Rules kept here:

* cost is a whole number >= 0 in one unit of the planner's choice (tokens, micro-dollars): sums of
  whole numbers do not depend on their order;
* a branch never spends beyond its limit, nor all live branches together beyond the pool;
* a spend bears an id and is counted once, however often it is reported;
* a rollback returns all that the branch has spent, once.

It does not know what was bought.
"""

from msgspec.structs import replace

from harness.errors import BudgetExceededError, IllegalMoveError
from harness.records.document import Record

__all__ = ["Account", "Budgets"]


class Account(Record, frozen=True, kw_only=True):
    """What one branch may spend and has spent."""

    limit: int | None = None
    """Most that it may spend; None for no limit of its own."""
    spent: int = 0
    """All that was reported."""
    returned: int = 0
    """What a rollback gave back: all that was spent, or nothing."""

    @property
    def net(self) -> int:
        """What still counts against the pool."""
        return self.spent - self.returned


class Budgets:
    """The accounts of all branches, and the pool that they draw on."""

    def __init__(self) -> None:
        """Start without accounts, and without a limit on their sum."""
        self._accounts: dict[str, Account] = {}
        self._spends: dict[tuple[str, str], int] = {}
        self._net = 0
        self.pool: int | None = None
        """Most that all live branches may have spent together; None for no limit."""

    @property
    def net(self) -> int:
        """Spent by all branches and not returned."""
        return self._net

    def account(self, branch_id: str) -> Account:
        """Return the account of a branch that was opened."""
        return self._accounts[branch_id]

    def open(self, branch_id: str, limit: int | None) -> None:
        """Give a branch its account."""
        self._accounts[branch_id] = Account(limit=limit)

    def knows(self, branch_id: str, spend_id: str, cost: int) -> bool:
        """Return whether this spend was counted; refuse an id that stands for another cost."""
        known = self._spends.get((branch_id, spend_id))
        if known is not None and known != cost:
            message = f"spend {spend_id!r} of branch {branch_id!r} was {known}, now {cost}"
            raise IllegalMoveError(f"{message}; give a new spend a new id")
        return known is not None

    def refuse_excess(self, branch_id: str, cost: int) -> None:
        """Raise BudgetExceededError when `cost` is more than is left."""
        account = self._accounts[branch_id]
        for whose, limit, spent in (
            (f"branch {branch_id!r}", account.limit, account.spent),
            ("the pool", self.pool, self._net),
        ):
            if limit is not None and spent + cost > limit:
                message = f"{whose} has {limit - spent} of {limit} left and {cost} is asked for"
                raise BudgetExceededError(f"{message}; roll a branch back or raise the limit")

    def spend(self, branch_id: str, spend_id: str, cost: int) -> None:
        """Count a spend."""
        account = self._accounts[branch_id]
        self._spends[branch_id, spend_id] = cost
        self._accounts[branch_id] = replace(account, spent=account.spent + cost)
        self._net += cost

    def give_back(self, branch_id: str) -> None:
        """Return all that a branch has spent."""
        account = self._accounts[branch_id]
        self._net -= account.net
        self._accounts[branch_id] = replace(account, returned=account.spent)
