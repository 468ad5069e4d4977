"""Profile files: finds them by name and reads their keys, as plain YAML; checks no values and imports no torch.

A file holds the profile of its own name and, under ``variants``, others that differ from it by a few keys. ``base``
names the profile that a profile inherits keys from; ``aliases`` are further names of the same profile.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping
from copy import deepcopy
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vidspec.errors import ProfileError, UsageError
from vidspec.registry import nearest

ENDINGS = (".yaml", ".yml")
#: Rank of a profile that names none: after those with a rank, sorted by name.
LAST = 1000
#: Most bytes of a file; a packaged profile has at most 600.
LONGEST = 256 << 10
#: Characters of an invalid value that a message quotes.
REPEATED = 80


class ProfileEntry(NamedTuple):
    """One profile as a file defines it.

    ``source`` is ``user``, ``packaged`` or, for a file named by its path, empty; ``error`` is set if the file cannot be
    read.
    """

    name: str
    path: Path
    source: str
    base: str | None = None
    group: str | None = None
    rank: int = LAST
    keys: Mapping[str, object] = {}
    error: ProfileError | None = None

    @property
    def origin(self) -> str:
        """File, and variant if any, of its keys, in the form that ``--profile`` takes."""
        return str(self.path) if self.name == self.path.stem else f"{self.path}:{self.name}"


class _ProfileFile(BaseModel):
    """Keys of a file that belong to no section; those of the profile itself are in ``model_extra``."""

    model_config = ConfigDict(extra="allow")

    base: str | None = Field(default=None, min_length=1)
    group: str | None = Field(default=None, min_length=1)
    rank: int = LAST
    aliases: list[str] = []
    variants: dict[str, dict[str, object]] = {}


class ProfileStore:
    """Profiles of the user's folder, of the package and of files named by path; reads each file once."""

    def __init__(self) -> None:
        self._read: dict[Path, dict[str, ProfileEntry]] = {}

    def chain(self, profile: str | ProfileEntry) -> list[ProfileEntry]:
        """Return a profile preceded by all its bases, the lowest first.

        Raises:
            ProfileError: one of them does not exist or cannot be read, or the bases are circular.
        """
        chain = [self._find(profile) if isinstance(profile, str) else profile]
        while (lowest := chain[0]).error is None and lowest.base is not None:
            below = self._find(lowest.base, lowest)
            if below in chain:
                names = " -> ".join(one.name for one in (*chain[::-1], below))
                raise ProfileError(f"base: {names} is circular", hint=f"set by {lowest.origin}")
            chain.insert(0, below)
        if lowest.error is not None:
            raise lowest.error
        return chain

    def all(self, word: str = "", of: ProfileEntry | None = None) -> dict[str, ProfileEntry]:
        """Return all profiles by name.

        Args:
            word: the name to look up: only its own file is read if it has one, otherwise the files that contain the
                word.
            of: the profile whose base is looked up. It is left out itself, so that a profile that hides another may
                have that one as its base; a packaged profile has packaged bases.
        """
        found: dict[str, ProfileEntry] = {}
        for source, all_files in self._files.items():
            if of is None or of.source in ("", "user", source):
                files = [file for file in all_files if file.stem == word]
                files = files or [file for file in all_files if contains_word(file, word)]
                entries = [
                    entry for file in files for entry in self._read_entries(file, source).values() if entry is not of
                ]
                for entry in sorted(entries, key=lambda one: one.name != one.path.stem):
                    found.setdefault(entry.name, entry)
        return found

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        """Files by source, those that hide others first."""
        folders = {"user": user_folder(), "packaged": packaged_folder()}
        return {
            source: sorted(file for ending in ENDINGS for file in folder.glob(f"*{ending}"))
            for source, folder in folders.items()
        }

    def _find(self, name_or_path: str, of: ProfileEntry | None = None) -> ProfileEntry:
        """Find a profile, or the base ``of`` one: paths are relative to its folder, its file's names come first."""
        key, hint = ("base: ", f"set by {of.origin}") if of else ("", "`vidspec profiles` lists them")
        if (file := named_file(name_or_path)) is not None:
            path = (of.path.parent / file[0]).resolve() if of else file[0]
            if not path.is_file():
                raise ProfileError(f"{key}{name_or_path}: there is no such profile file", hint=of and hint)
            candidates, name = self._read_entries(path, ""), file[1] or path.stem
            if (own := candidates[path.stem]).error is not None:
                return own
        else:
            name, siblings = name_or_path, self._read_entries(of.path, of.source) if of else {}
            candidates = siblings if siblings.get(name, of) is not of else self.all(name, of)
        if name not in candidates:
            close = nearest(name, candidates if file else self.all())
            meant = f"; did you mean {close}?" if close else ""
            raise ProfileError(f"{key}no profile is called {name!r}{meant}", hint=hint)
        return candidates[name]

    def _read_entries(self, path: Path, source: str) -> dict[str, ProfileEntry]:
        if path not in self._read:
            profiles: dict[str, ProfileEntry] = {}
            try:
                data = read_yaml(path, ProfileError)
                if not isinstance(data, dict):
                    raise ProfileError(f"{path}: a profile is a mapping of keys, not {type(data).__name__}")
                for entry in _entries(path.stem, path, source, data):
                    if entry.name in profiles:
                        raise ProfileError(f"{path}: two profiles are called {entry.name!r}")
                    profiles[entry.name] = entry
            except ProfileError as error:
                profiles = {path.stem: ProfileEntry(path.stem, path, source, error=error)}
            self._read[path] = profiles
        return self._read[path]


def user_folder() -> Path:
    """Return the folder of the user's own profiles, which hide packaged ones of the same name."""
    import platformdirs

    return Path(platformdirs.user_config_dir("vidspec")) / "profiles"


def packaged_folder() -> Path:
    """Return the folder of packaged profiles: inside the installed package, or next to it in a checkout."""
    here = Path(__file__).resolve().parents[1]
    installed = here / "_profiles"
    return installed if installed.is_dir() else here.parent / "profiles"


def named_file(text: str) -> tuple[Path, str] | None:
    """Parse ``FILE`` or ``FILE:VARIANT``; None if ``text`` is the name of a profile."""
    file, _, variant = text.rpartition(":")
    if not file.endswith(ENDINGS):
        file, variant = text, ""
    if file.endswith(ENDINGS) or os.sep in file or "/" in file:
        return Path(file.strip()).expanduser(), variant
    return None


def _entries(name: str, path: Path, source: str, data: Mapping[str, object]) -> Iterator[ProfileEntry]:
    """Yield a profile, its aliases, and its variants, which are based on it unless they name another base."""
    origin = ProfileEntry(name, path, source).origin
    try:
        content = _ProfileFile.model_validate({str(key): value for key, value in data.items()})
    except ValidationError as error:
        raise ProfileError(": ".join(describe_error(error)), hint=f"set by {origin}") from None
    keys = content.model_extra or {}
    yield ProfileEntry(name, path, source, content.base, content.group, content.rank, keys)
    for alias in content.aliases:
        about = f"The same as {name}: {keys.get('about') or ''}".rstrip(": ")
        yield ProfileEntry(alias, path, source, name, content.group, content.rank, {"about": about})
    for variant, own in content.variants.items():
        yield from _entries(variant, path, source, {"base": name, **own})


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
