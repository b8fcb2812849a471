"""Scoring decisions: the right score to the right branch, and the batches as they were."""

import re
from typing import Any

import pytest

from harness.commit_log import CommitLog  # type: ignore[attr-defined]
from harness.errors import ConfigError, InvalidRecordError
