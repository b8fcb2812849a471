"""Judging: records in, verdicts out; no I/O."""
