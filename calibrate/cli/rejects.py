"""Unusable lines of a file: kept, and told."""

from pathlib import Path
from typing import TYPE_CHECKING

from calibrate import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.commit_log import Reject

__all__ = ["tell_rejects"]


def tell_rejects(path: Path, rejects: "Sequence[Reject]") -> None:
    """Keep unusable lines in a file of their own, and say where."""
    from harness.commit_log import write_rejects  # noqa: PLC0415

    if rejects:
        target = path.with_name(f"{path.name}.rejects")
        write_rejects(target, rejects, overwrite=True)
        message = f"unusable records: {len(rejects)}, kept in {target}; the first: "
        console.errors.print(
            message + rejects[0].error, markup=False, highlight=False, soft_wrap=True
        )
