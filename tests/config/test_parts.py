"""Parts own their options and the combinations that they refuse."""

import sys

import pytest

from tests.plugins import forget_plugins
from vidspec.acceptance.base import rules
from vidspec.config import part_sections, profiles
from vidspec.drafting.base import drafters
from vidspec.errors import ProfileError
from vidspec.lossy import lossy
from vidspec.pruning.base import pruners
from vidspec.registry import Registry, options_of

SECTIONS = {
    part_sections.DraftSection: drafters,
    part_sections.PruneSection: pruners,
    part_sections.AcceptSection: rules,
    part_sections.LossySection: lossy,
}
PART = """
from typing import Annotated
from owned import Owned, made
from vidspec.registry import key

@made.register("{name}")
class Part(Owned):
    def __init__(self, known, size: Annotated[int, key("how large", ge=1)] = {default}, other=0): ...
"""
REFUSES = """
from vidspec.pruning.base import Pruner, pruners
from vidspec.registry import OptionConflict

@pruners.register("choosy")
class Choosy(Pruner):
    def __init__(self, most: int = 4) -> None:
        self.most = most

    def check(self, profile):
        if profile.draft.gamma > self.most:
            yield OptionConflict("draft.gamma", f"choosy takes {self.most}", f"draft.gamma: {self.most}")

    def __call__(self, signals, alpha): ...
"""


def problem(*args):
    with pytest.raises(ProfileError) as caught:
        profiles.load(*args, env={})
    return caught.value.message


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_a_section_says_nothing_of_its_parts_options(section):
    shared, taken = section.__mro__[1], SECTIONS[section].section_keys()
    assert shared.__name__ == section.__name__ and taken
    assert set(section.model_fields) == {*shared.model_fields, *taken, "options"}
    assert set(shared.model_fields).isdisjoint({*taken, "options"})


@pytest.mark.parametrize("registry", SECTIONS.values(), ids=lambda registry: registry.part)
def test_every_key_of_a_part_is_described(registry):
    for name in registry.modules():
        for key, field in options_of(registry.get(name), *registry.known).model_fields.items():
            assert key not in registry.section_keys() or field.description, (name, key)


@pytest.fixture
def owned(tmp_path, monkeypatch):
    """A package of parts, with a function that adds one."""
    (tmp_path / "owned").mkdir()
    (tmp_path / "owned" / "__init__.py").write_text(
        "from vidspec.registry import Registry\n\nclass Owned: ...\n\n"
        "made = Registry(Owned, 'test', 'owned', 'part', 'part.kind', known=('known',))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def add(name, default):
        (tmp_path / "owned" / f"{name}.py").write_text(PART.format(name=name, default=default))
        import owned

        return owned.made

    yield add
    for name in [name for name in sys.modules if name.partition(".")[0] == "owned"]:
        del sys.modules[name]


def test_one_file_adds_a_key_to_a_section(owned):
    made = owned("one", 3)

    @part_sections.with_parts(made)
    class Given(part_sections.PartSection):
        """A section."""

        kind: str = "one"

    assert isinstance(made, Registry) and Given(size="2").model_dump() == {"kind": "one", "size": 2, "options": {}}
    assert Given().size == 3 and Given(options={"other": 1}).options == {"other": 1}
    for wrong in ({"size": 0}, {"other": 1}, {"options": {"size": 2}}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Given(**wrong)


def test_parts_that_disagree_about_a_key_are_a_mistake(owned):
    owned("one", 3)
    with pytest.raises(TypeError, match="part two: size has another type or default elsewhere"):
        owned("two", 4).section_keys()


def test_what_a_plugin_refuses_is_said_like_any_combination(tmp_path):
    (tmp_path / "choosy.py").write_text(REFUSES)
    settings = {"plugins": str(tmp_path / "choosy.py"), "prune.method": "choosy"}
    try:
        assert problem("sd-uniform", settings) == ("draft.gamma: choosy takes 4; nearest valid choice: draft.gamma: 4")
        assert profiles.load("sd-uniform", {**settings, "prune.options.most": 9}, env={}).prune.method == "choosy"
    finally:
        forget_plugins()


def test_a_hybrid_refuses_what_its_drafter_refuses():
    settings = {"draft.options.of": "ensemble", "draft.options.settings": {"contexts": ["text", "text"]}}
    assert problem("hybrid", settings) == (
        "draft.contexts: names a context twice; nearest valid choice: draft.contexts: [text]"
    )
