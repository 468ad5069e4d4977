import subprocess
import sys
from abc import ABC, abstractmethod
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints
from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from vidspec import registry
from vidspec.config.schema import PARTS, names
from vidspec.drafting.base import drafters
from vidspec.errors import ProfileError
from vidspec.registry import Registry


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A package with two methods; importing ``heavy`` would fail."""
    folder = tmp_path / "partsfortest"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from vidspec.registry import Registry\n\nclass Part: ...\n\n"
        "made = Registry(Part, 'test', __name__, 'part', 'part.kind')\n"
    )
    (folder / "light.py").write_text(
        "from partsfortest import Part, made\n\n@made.register('light')\nclass Light(Part): ...\n"
    )
    (folder / "heavy.py").write_text(
        'from partsfortest import made\nraise ImportError\n@made.register("heavy")\ndef f(): ...\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    import partsfortest

    yield partsfortest.made
    for name in [name for name in sys.modules if name.startswith("partsfortest")]:
        del sys.modules[name]


def test_names_are_the_files_of_the_folder(parts):
    assert parts.names() == ("heavy", "light")
    assert "partsfortest.light" not in sys.modules


def test_get_imports_one_module(parts):
    assert parts.get("light").__name__ == "Light"
    assert "partsfortest.heavy" not in sys.modules


def test_unknown_name_lists_the_valid_ones_and_the_nearest(parts):
    with pytest.raises(ProfileError) as caught:
        parts.get("ligth")
    assert str(caught.value) == "part.kind: unknown part 'ligth'; did you mean light? valid: heavy, light"


def test_methods_of_the_running_process(parts):
    @parts.register("own")
    class Own(parts.contract): ...

    assert parts.get("own") is Own and "own" in parts.names()
    parts.register("own")(Own)
    with pytest.raises(ValueError, match="registered twice"):
        parts.register("own")(parts.get("light"))


def test_plugins_of_other_packages(parts, monkeypatch):
    point = EntryPoint("path", "pathlib:PurePath", "vidspec.test")
    searches = []
    monkeypatch.setattr(registry, "entry_points", lambda group: searches.append(group) or EntryPoints([point]))
    monkeypatch.setattr(registry, "_entry_points", cache(registry._entry_points.__wrapped__))
    assert "path" in parts.names() and "path" in parts.names() and searches == ["vidspec.test"]
    with pytest.warns(DeprecationWarning, match=r"pathlib.PurePath should derive from partsfortest\.Part"):
        found = parts.get("path")
    assert issubclass(found, parts.contract) and found.__name__ == "PurePath"


def test_a_part_defines_what_its_contract_needs(parts):
    class Needs(ABC):
        colour: str = "red"

        @abstractmethod
        def work(self): ...

    made = Registry(Needs, "test", "partsfortest", "part", "part.kind")
    with pytest.warns(DeprecationWarning, match=r"Idle should derive from .*Needs"):
        made.register("idle")(type("Idle", (), {}))
    with pytest.raises(ProfileError, match=r"^part\.kind: the part idle does not define work \(see .*Needs\)$"):
        made.get("idle")
    made.register("busy")(type("Busy", (Needs,), {"work": print}))
    assert made.get("busy").colour == "red"


@pytest.mark.parametrize("part", PARTS.values(), ids=lambda part: part.part)
def test_every_file_registers_its_own_name(part):
    assert {name for name in part.modules() if part.owns(name) or part.get(name)} == set(part.modules())


def test_a_profile_is_checked_without_torch():
    """Every part that a profile can name says what it is, and none imports torch for that."""
    code = (
        "import sys\nfrom vidspec.config.schema import PARTS\n"
        "for part in PARTS.values():\n"
        "    for name in part.modules() if part.part != 'families' else ():\n"
        "        part.get(name)\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_drafters_say_what_they_are():
    def facts(name, **options):
        one = drafters.get(name)(**options)
        return one.model, one.sees, one.trees, one.remote

    assert facts("model") == ("draft", "kept", True, True) and facts("text_only") == ("draft", "nothing", True, True)
    assert facts("self") == ("target", "kept", True, True) and facts("sparse_kv") == ("target", "own", True, False)
    assert facts("ensemble") == ("draft", "kept", False, False)
    assert facts("ensemble", contexts=("text", "pooled"))[1] == "all"
    assert facts("ensemble", contexts=("caption",))[1] == "nothing"


def test_options_are_what_a_constructor_takes():
    class Own:
        def __init__(self, depth, size: Annotated[int, Field(ge=1)] = 1, free=None):
            self.size = size

    taken = registry.options_of(Own, "depth")
    assert list(taken.model_fields) == ["size", "free"] and taken.model_validate({"size": "3"}).size == 3
    with pytest.raises(ValidationError):
        taken(size=0)
    assert not registry.options_of(type("Plain", (), {})).model_fields


def test_the_parts_of_vidspec():
    assert "none" in names("pruning") and "none" in names("drafting")
    with pytest.raises(KeyError):
        names("nonsense")
