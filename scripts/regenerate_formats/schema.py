"""The JSON Schema of the tolerance file, for readers in other languages."""

import json
from pathlib import Path
from typing import Any

import msgspec

from harness.records import ToleranceFile

__all__ = ["SCHEMA", "schema"]

SCHEMA = Path(__file__).parents[2] / "docs" / "tolerance.schema.json"


def schema() -> str:
    """Return the schema, indented JSON; fields that it does not name may be there."""
    plain = msgspec.json.schema(ToleranceFile)
    root = plain["$defs"]["ToleranceFile"]
    del root["properties"]["unknown_fields"]
    root["required"] = [*root["required"], "schema_version", "digest"]
    dialect: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | plain, indent=2) + "\n"
