"""What the gate can read and write: files, rows, S3-style objects, anything with an ETag.

`RowResource` stands in `harness.planner.resources.row`, since it needs SQLAlchemy.
"""

from harness.planner.resources.file import FileResource
from harness.planner.resources.http import HttpResource, S3Object
from harness.planner.resources.resource import Joinable, Resource, Snapshot, by_id

__all__ = ["FileResource", "HttpResource", "Joinable", "Resource", "S3Object", "Snapshot", "by_id"]
