"""Reads small YAML files of plain values, and describes pydantic's validation errors."""

from __future__ import annotations

from collections.abc import Hashable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from vidspec.errors import UsageError

#: Most bytes of a file; a packaged profile has at most 600.
LONGEST = 256 << 10
#: Characters of an invalid value that a message quotes.
REPEATED = 80


class _RepeatedKeyError(yaml.MarkedYAMLError):
    """Error: a key is set twice in one mapping. YAML would keep the last."""


class _Loader(yaml.SafeLoader):
    """Loader of plain values: refuses aliases (a few lines can expand to gigabytes) and repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not supported; write the value again", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise _RepeatedKeyError(problem=f"{key_node.value}: is set twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, error: type[UsageError] = UsageError) -> object:
    """Read the document in a file.

    Raises:
        UsageError: of type ``error``: the file cannot be read, is not UTF-8 or not YAML, sets a key twice, uses
            aliases, is nested too deeply, or exceeds :data:`LONGEST`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise error(f"{path}: is longer than {LONGEST >> 10} KiB")
        return deepcopy(_parsed(content.decode("utf-8")))
    except OSError as why:
        raise error(f"{path}: cannot be read: {why.strerror or why}") from None
    except UnicodeDecodeError:
        raise error(f"{path}: is not UTF-8 text") from None
    except yaml.YAMLError as why:
        mark = getattr(why, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        if isinstance(why, _RepeatedKeyError):
            raise error(f"{path}:{where} {why.problem}", hint="YAML keeps the last; leave one out") from None
        raise error(f"{path}:{where} not YAML: {getattr(why, 'problem', None) or why}") from None
    except (ValueError, RecursionError) as why:  # a 13th month, a number of thousands of digits, hundreds of levels
        raise error(f"{path}: holds a value that cannot be read: {why}") from None


@lru_cache(256)
def _parsed(text: str) -> object:
    """Parse a document once: most profiles are built from the same few files, each of which takes milliseconds."""
    return yaml.load(text, _Loader)


def contains_word(path: Path, word: str) -> bool:
    """Return True if a readable file contains this word; far quicker than parsing it as YAML."""
    try:
        with path.open("rb") as file:
            return word.encode() in file.read(LONGEST)
    except (OSError, UnicodeEncodeError):
        return False


def describe_error(error: ValidationError) -> tuple[str, str]:
    """Return the key of the first problem (empty if it concerns several keys), and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "combination":
        return "", first["msg"]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "string_unicode":
        return key, "holds bytes that are not UTF-8"
    given = "" if first["type"] in ("name", "file", "missing") else f", not {_shortened_repr(first['input'])}"
    text = first["msg"].replace("Input should be", "must be").replace("String should", "must")
    return key, f"{text[:1].lower()}{text[1:]}{given}"


def _shortened_repr(value: object) -> str:
    """Return the repr of a value, shortened to :data:`REPEATED` characters."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= REPEATED else f"{text[:REPEATED]}..."
