"""A run, read back from its folder: its config beside its observations.

The config is kept whole, as it was asked for; the store knows only its digest, and both must agree.
"""

from pathlib import Path

import msgspec

from calibrate.config import CalibrationConfig
from calibrate.evidence import Snapshot, snapshot
from calibrate.observations import ObservationStore, stored_identity
from harness.codec import canonical_bytes, parse
from harness.errors import InvalidRecordError, StoreError
from harness.files import read_bytes, write_atomic

__all__ = ["keep_config", "read_run"]

CONFIG_NAME = "config.json"
STORE_NAME = "observations.sqlite"


def keep_config(folder: Path, config: CalibrationConfig) -> None:
    """Write the config of a run into its folder."""
    write_atomic(folder / CONFIG_NAME, canonical_bytes(config), overwrite=True)


def read_run(folder: Path) -> Snapshot:
    """Return what the run in `folder` stored.

    Raises InputFileError when there is no run, StoreError when the config is another run's, or
    when some scores are still missing.
    """
    config = _read_config(folder / CONFIG_NAME)
    identity = stored_identity(folder / STORE_NAME)
    if config.digest != identity.config_digest:
        raise StoreError(f"{folder}: {CONFIG_NAME} is not the config of {STORE_NAME}; calibrate it")
    with ObservationStore(folder / STORE_NAME, identity) as store:
        return snapshot(config, store)


def _read_config(path: Path) -> CalibrationConfig:
    try:
        return msgspec.convert(parse(read_bytes(path), str(path)), CalibrationConfig)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"{path}: {error}; calibrate into another folder") from error
