"""The JSON schema of a record, for those who read ``--format json`` with other tools; validates nothing itself."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["record_schema"]


@cache
def record_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) that every line of ``vidspec caption --format json`` satisfies."""
    schema: dict[str, Any] = json.loads((files("vidspec.dataset") / "record_schema.json").read_text(encoding="utf-8"))
    return schema
