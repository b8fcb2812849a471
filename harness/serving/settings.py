"""What the plugin is told: ``--additional-config '{"scorepin": {...}}'``, all of it optional."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import ConfigError
from harness.records.document import Record
from harness.serving.step_log import LogLimits

__all__ = ["ServingSettings", "engine_folder", "read_settings"]

KEY = "scorepin"


class ServingSettings(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings, with their defaults."""

    log: str = "scorepin-steps"
    """Folder of the step log; one folder in it for each engine of the server."""
    file_bytes: int = LogLimits().file_bytes
    """See `LogLimits`."""
    num_files: int = LogLimits().num_files
    """See `LogLimits`."""
    allow_pin: bool = False
    """Whether a replay may pin this server. Other requests wait meanwhile: not for production."""
    max_slots_served: int = 1 << 20
    """Slots of the newest steps that the HTTP route remembers, about 200 bytes each."""

    @property
    def limits(self) -> LogLimits:
        """The log's share of the disk."""
        return LogLimits(file_bytes=self.file_bytes, num_files=self.num_files)


def read_settings(additional_config: Mapping[str, Any]) -> ServingSettings:
    """Return the settings in an ``additional_config``; raises ConfigError for a wrong one."""
    try:
        return msgspec.convert(additional_config.get(KEY, {}), ServingSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"additional_config.{KEY}: {error}") from error


def engine_folder(settings: ServingSettings, engine_index: int) -> Path:
    """Return the folder of one engine's log."""
    return Path(settings.log) / f"engine-{engine_index}"
