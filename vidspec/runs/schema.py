"""JSON schema of a record, for other tools that read ``--format json``; validates nothing itself."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

__all__ = ["record_schema"]


@cache
def record_schema() -> dict[str, object]:
    """Return the schema (draft 2020-12) of every line of ``vidspec caption --format json``."""
    schema: dict[str, object] = json.loads((files("vidspec.runs") / "record_schema.json").read_text(encoding="utf-8"))
    return schema
