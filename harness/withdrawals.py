"""Withdraws tolerances: writes, beside a tolerance file, which of its tolerances are out of use.

Rules kept here:

* ``NAME.tolerance.json.withdrawn.json`` counts wherever ``NAME.tolerance.json`` is loaded;
* a tolerance is withdrawn once, so the file holds no more entries than there are tolerances;
* entries are for one tolerance file by digest: once it has been calibrated anew they are void, and
  are dropped when the next is written;
* one that is damaged is an error, never "nothing was withdrawn".

It does not know when an alarm is raised; `harness.judge.alarm` does.
"""

from collections.abc import Sequence
from pathlib import Path

from harness.files import write_atomic
from harness.records.tolerance import ToleranceFile
from harness.records.withdrawal import Withdrawal, Withdrawals
from harness.sealed import read_sealed, seal

__all__ = ["SUFFIX", "read_withdrawals", "sidecar", "withdraw"]

SUFFIX = ".withdrawn.json"
"""What is added to the name of a tolerance file."""

ADVICE = (
    "damaged or edited by hand, so it is not known what was withdrawn; calibrate the build again, "
    "or remove the file if all its tolerances may be used"
)


def sidecar(path: Path) -> Path:
    """Return where the withdrawals of the tolerance file at `path` stand."""
    return path.with_name(path.name + SUFFIX)


def read_withdrawals(path: Path) -> tuple[Withdrawal, ...]:
    """Return what was withdrawn of the tolerance file at `path`, of this or an earlier content.

    Raises what `harness.sealed.read_sealed` raises.
    """
    beside = sidecar(path)
    return read_sealed(Withdrawals, beside, ADVICE).withdrawals if beside.exists() else ()


def withdraw(path: Path, file: ToleranceFile, withdrawals: Sequence[Withdrawal]) -> None:
    """Add `withdrawals` to those of `file`, which stands at `path`; the earliest of each stays."""
    before = [one for one in read_withdrawals(path) if one.file_digest == file.digest]
    first: dict[str, Withdrawal] = {}
    for one in (*before, *withdrawals):
        first.setdefault(one.tolerance_id, one)
    document = Withdrawals(withdrawals=tuple(first.values()))
    write_atomic(sidecar(path), seal(document), overwrite=True)
