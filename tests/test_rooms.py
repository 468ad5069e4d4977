"""Imports between the rooms of the package point one way."""

import ast
import io
import tokenize
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "vidspec"
RESEARCH = PACKAGE.with_name("research")
#: The rooms from the ground up; one may import what stands before its own line, and itself.
ORDER = (
    ("bounds", "channel", "errors", "escaping", "garbage", "memory", "signals", "_version"),
    ("process",),
    ("limited",),
    ("files", "user_cache"),
    ("events",),
    ("registry",),
    ("embedded",),
    ("video", "engine"),
    ("models",),
    ("pruning",),
    ("draft_length",),
    ("drafting",),
    ("acceptance",),
    ("schedule", "lossy"),
    ("config",),
    ("decoding",),
    ("baselines",),
    ("captioner",),
    ("display",),
    ("runs", "bench"),
    ("runner", "aio"),
    ("training",),
    ("serve",),
    ("cli",),
    ("__init__", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
#: Rooms whose parts check a profile or are built from its sections, and may import it for types; it holds these parts.
PARTS = {"pruning", "drafting", "acceptance", "schedule", "lossy"}
#: Imports made when a name is first asked for, so that importing the package loads nothing.
LAZY = {"captioner"}


def room(path: Path) -> str:
    """The folder below the package, or the module beside the folders."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> set[tuple[int, str]]:
    """Line and room of every import of the package in a file: inside functions and for types too."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            name = ".".join(path.relative_to(PACKAGE.parent).parts[: -node.level]) + (f".{node.module or ''}")
            modules = [name.rstrip(".")] if node.module else [f"{name}{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"vidspec.{alias.name}" for alias in node.names] if node.module == "vidspec" else [node.module]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            if module.startswith("vidspec."):
                found.add((node.lineno, module.split(".")[1]))
    return found


def for_types(path: Path) -> set[int]:
    """Lines of what is imported for types only."""
    blocks = [node for node in parsed(path).body if isinstance(node, ast.If)]
    named = [block for block in blocks if isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"]
    return {node.lineno for block in named for node in block.body}


FILES = sorted(PACKAGE.rglob("*.py"))


#: Lines of code that a room may have, without blanks, comments and docstrings: what it had when its bound was set, and
#: two percent. A commit that raises one says what the lines buy, and what left.
LINES = {
    "__init__": 79,
    "__main__": 8,
    "_version": 4,
    "acceptance": 381,
    "aio": 109,
    "baselines": 530,
    "bench": 1080,
    "bounds": 17,
    "captioner": 136,
    "channel": 153,
    "cli": 3015,  # the command train and its bars, the list of heads, models remove, published quality
    "config": 1831,  # parses times and segments, which runs did, and spells options
    "decoding": 3779,
    "display": 1957,
    "draft_length": 809,
    "drafting": 1778,
    "embedded": 74,
    "engine": 5193,
    "errors": 133,  # says what an error of a library says, which six modules did
    "escaping": 50,
    "events": 750,
    "files": 202,
    "garbage": 64,
    "limited": 83,
    "lossy": 24,
    "memory": 46,
    "models": 6560,
    "process": 219,
    "pruning": 548,
    "registry": 145,
    "runner": 39,
    "runs": 8072,
    "schedule": 23,
    "serve": 1039,  # ends to read what nobody waits for
    "signals": 134,
    "training": 1362,  # a head from the target's own captions, which research trained for the built-in pairs alone
    "user_cache": 23,
    "video": 2723,
}
#: Tokens that make no line one of code.
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(path: Path) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    lines = {at for one in tokens if one.type not in LAYOUT for at in range(one.start[0], one.end[0] + 1)}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(parsed(path)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_no_room_grows_unseen():
    found = defaultdict(int)
    for path in FILES:
        found[room(path)] += code_lines(path)
    assert set(LINES) == set(found)
    over = {name: f"{count}, at most {LINES[name]}" for name, count in found.items() if count > LINES[name]}
    assert not over, f"{over}: raise it and say what the lines buy"
    loose = {name for name, count in found.items() if LINES[name] > 1.1 * count + 10}
    assert not loose, f"{loose} shrank: lower their bounds"


def test_lines_of_code_are_counted(tmp_path):
    file = tmp_path / "some.py"
    file.write_text('"""Doc\\nstring."""\n\n# why\ndef f():\n    """Doc."""\n    return (1,\n            """text""")\n')
    assert code_lines(file) == 3


def test_baselines_are_reached_through_their_registry_only():
    others = [path for path in FILES if room(path) != "baselines"]
    assert not [path for path in others if "baselines" in {name for _, name in imported(path)}]


def test_every_room_has_its_place():
    rooms = {room(path) for path in FILES}
    assert rooms == set(LEVEL)


@pytest.mark.parametrize("name", sorted({room(path) for path in FILES}))
def test_imports_point_down(name):
    wrong = [
        f"{path.relative_to(PACKAGE.parent)}:{line} imports {other}"
        for path in FILES
        if room(path) == name
        for line, other in sorted(imported(path))
        if other != name
        and LEVEL.get(other, -1) >= LEVEL[name]
        and not (name in PARTS and other == "config" and line in for_types(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_needs_nothing_that_is_not_installed():
    wrong = []
    for path in FILES:
        for node in ast.walk(parsed(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if {name.split(".")[0] for name in names} & {"research", "tests"}:
                wrong.append(f"{path}:{node.lineno}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("files", [FILES, sorted(RESEARCH.rglob("*.py"))], ids=["vidspec", "research"])
def test_no_module_imports_itself_through_others(files):
    graph = defaultdict(set)
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in files}
    for name, path in names.items():
        for node in parsed(path).body:  # what runs when it is imported
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    graph[name].add(whole if whole in names else node.module)
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above[above.index(name) :], name))
        if name not in done:
            for other in graph[name] & names.keys():
                visit(other, (*above, name))
            done.add(name)

    for name in names:
        visit(name, ())


def test_a_wrong_import_is_found(tmp_path, monkeypatch):
    from tests import test_rooms

    package = tmp_path / "vidspec"
    (package / "engine").mkdir(parents=True)
    file = package / "engine" / "rows.py"
    file.write_text("def late():\n    from vidspec.decoding import loop\n    from ..models import base\n")
    monkeypatch.setattr(test_rooms, "PACKAGE", package)
    assert test_rooms.imported(file) == {(2, "decoding"), (3, "models")}
