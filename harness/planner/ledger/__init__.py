"""The branch ledger: keeps what a rolled-back branch left in the caches out of accepted drafts.

Imports neither torch nor numpy nor SQLAlchemy; `harness.planner.ledger.store` opens a ledger that a
database keeps.
"""

from harness.errors import BranchContaminationError, BudgetExceededError
from harness.planner.ledger.branches import BranchEvent, BranchState
from harness.planner.ledger.budget import Account
from harness.planner.ledger.drafts import (
    Closure,
    Draft,
    DraftChange,
    DraftDecision,
    DraftState,
    Finding,
    VerifierScore,
)
from harness.planner.ledger.events import Write
from harness.planner.ledger.keys import SHARED, CacheKey
from harness.planner.ledger.ledger import BranchLedger
from harness.planner.ledger.views import BranchView, EntryView, KeyUse, Resolution

__all__ = [
    "SHARED",
    "Account",
    "BranchContaminationError",
    "BranchEvent",
    "BranchLedger",
    "BranchState",
    "BranchView",
    "BudgetExceededError",
    "CacheKey",
    "Closure",
    "Draft",
    "DraftChange",
    "DraftDecision",
    "DraftState",
    "EntryView",
    "Finding",
    "KeyUse",
    "Resolution",
    "VerifierScore",
    "Write",
]
