"""JSON Schemas as grammars of ``llguidance``. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from vidspec.limited import Limits, OverTime, run_limited
from vidspec.process import ChildEnded

#: Schema of any JSON object.
ANY_OBJECT = '{"type": "object"}'

#: White space between the parts of a JSON text: at most a space, so that every answer is one short line.
WHITESPACE = r"\x20?"
#: Limits of the process that tries a grammar.
LIMITS = Limits(cpu_s=1, wall_s=10.0, room=512 << 20)


def fields_schema(names: Sequence[str]) -> str:
    """Return the schema, as JSON, of an object of text fields with these names, in this order."""
    properties = {name: {"type": "string", "minLength": 1} for name in names}
    schema = {"type": "object", "properties": properties, "required": list(names), "additionalProperties": False}
    return json.dumps(schema, ensure_ascii=False)


def schema_properties(schema: str | None) -> dict[str, object]:
    """Return the schemas of the properties that a schema (JSON) lists; none for free text and for any object."""
    properties = json.loads(schema or "{}").get("properties")
    return properties if isinstance(properties, dict) else {}


@lru_cache(maxsize=16)
def json_grammar(schema: str) -> str:
    """Return the grammar of the JSON texts that a schema (JSON itself) describes.

    Raises:
        ValueError: it is not a JSON Schema, uses what ``llguidance`` does not support, or takes too long.
        ModuleNotFoundError: ``llguidance`` is not installed.
    """
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE})
    if problem := LLMatcher.validate_grammar(grammar):
        raise ValueError(problem.splitlines()[0])
    if exceeded := _problem(grammar):
        raise ValueError(exceeded)
    return grammar


def _problem(grammar: str) -> str | None:
    """Return the reason why the first tokens cannot be computed within :data:`LIMITS`; None if they can.

    ``llguidance`` has limits of its own, but not there: a ``multipleOf`` of seven digits takes minutes.
    """
    try:
        error: str | None = run_limited(_begin, grammar, limits=LIMITS)
    except (OverTime, ChildEnded):
        error = ""
    if error is None:
        return None
    if " items; max is " not in error:
        return "it takes too much time or memory to follow"
    reason = error.partition("; consider")[0].removeprefix("Parser Error: ")  # what follows is the parser's state
    return f"it exceeds a limit of llguidance ({reason}): list fewer optional properties"


def _begin(grammar: str) -> str | None:
    """Compute the masks of the first tokens of an object; return the error if ``llguidance`` meets a limit."""
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    matcher.compute_bitmask()
    if not matcher.is_error():
        matcher.try_consume_tokens([ord("{")])
    return matcher.get_error() if matcher.is_error() else None
