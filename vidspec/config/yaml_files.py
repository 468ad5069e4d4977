"""Reads YAML that people write and pass on, small files of plain values, and words what pydantic finds wrong in it."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import yaml
from pydantic import ValidationError

from vidspec.errors import UsageError

__all__ = ["contains_word", "describe_error", "read_yaml"]

#: Bytes of a file, and mappings and lists within each other; a packaged profile has at most 600 and two.
LONGEST, DEEPEST = 256 << 10, 32
#: Characters of a wrong value that a message repeats.
REPEATED = 80


class _Repeated(yaml.MarkedYAMLError):
    """A key that is set twice in one mapping, of which YAML would keep the last."""


class _Loader(yaml.SafeLoader):
    """Values alone: no aliases, of which a few lines make a text of gigabytes, nothing nested without end, and no key
    twice."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise self._refused("aliases are not supported; write the value again")
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._refused(f"nested more than {DEEPEST} deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise _Repeated(problem=f"{key_node.value}: is set twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def _refused(self, problem: str) -> yaml.MarkedYAMLError:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def read_yaml(path: Path, error: type[UsageError] = UsageError) -> object:
    """The one document in a file.

    Raises:
        UsageError: of the type ``error``; it cannot be read, is not UTF-8 or not YAML, sets a key twice, or is longer,
            deeper or of more than values that people write.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise error(f"{path}: is longer than {LONGEST >> 10} KiB")
        return yaml.load(content.decode("utf-8"), _Loader)
    except OSError as why:
        raise error(f"{path}: cannot be read: {why.strerror or why}") from None
    except UnicodeDecodeError:
        raise error(f"{path}: is not UTF-8 text") from None
    except yaml.YAMLError as why:
        mark = getattr(why, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        if isinstance(why, _Repeated):
            raise error(f"{path}:{where} {why.problem}", hint="YAML keeps the last; leave one out") from None
        raise error(f"{path}:{where} not YAML: {getattr(why, 'problem', None) or why}") from None
    except ValueError as why:  # a date with a 13th month, a number of thousands of digits
        raise error(f"{path}: holds a value that cannot be read: {why}") from None


def contains_word(path: Path, word: str) -> bool:
    """Whether a file that can be read holds this word anywhere; far quicker than reading it as YAML."""
    try:
        with path.open("rb") as file:
            return word.encode() in file.read(LONGEST)
    except (OSError, UnicodeEncodeError):
        return False


def describe_error(error: ValidationError) -> tuple[str, str]:
    """The first problem in one line: its key (empty if it concerns several keys together), and the message."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "combination":
        return "", first["msg"]
    key = ".".join(str(part) for part in first["loc"])
    given = "" if first["type"] in ("name", "missing") else f", not {_quoted(first['input'])}"
    text = first["msg"].replace("Input should be", "must be").replace("String should", "must")
    return key, f"{key}: {text[:1].lower()}{text[1:]}{given}"


def _quoted(value: object) -> str:
    """As much of what was given as helps."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= REPEATED else f"{text[:REPEATED]}..."
