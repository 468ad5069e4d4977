"""Profiles with a lossy rule: the papers' settings, what is refused, and that they say what they are."""

from types import SimpleNamespace

import pytest

from tests.fake_captioner import record
from vidspec.acceptance.base import rules
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.acceptance.rules.fly import FlyRule
from vidspec.acceptance.rules.lvspec import LVSpec
from vidspec.cli.report import summary
from vidspec.config import profiles
from vidspec.config.profiles import load
from vidspec.engine.sampling import Sampling
from vidspec.errors import ProfileError
from vidspec.registry import build_part

LOSSY = ("fly", "fly_minus", "lvspec", "random_loose")


def loaded(name, **overrides):
    return load(name, overrides, env={})


def test_settings_of_lvspec_and_its_ablations():
    def facts(name):
        p = loaded(name)
        assert (p.accept.rule, p.accept.similar, p.draft.gamma) == ("lvspec", 10, 10)
        assert (p.prune.method, p.prune.alpha, p.schedule.kind) == ("uniform", 0.9, "sequential")
        return p.accept.lam, p.accept.tolerance, p.draft.kind, p.draft.topology, p.accept.protect

    assert facts("lvspec") == (0.7, True, "model", "chain", ())
    assert facts("lvspec-no-shift") == (0.7, False, "model", "chain", ())
    for lam in (0.2, 0.5, 0.9):
        assert facts(f"lvspec-{lam}") == (lam, False, "model", "chain", ())
    assert facts("self-lvspec") == (0.7, True, "self", "chain", ())
    assert facts("lvspec-safe") == (0.7, True, "model", "chain", ("numbers", "negations"))
    assert facts("lvspec-tree") == (0.7, True, "model", "tree", ())
    assert set(loaded("lvspec-tree").draft.tree.replace("|", "").split()) == {
        f"{branch}{'0' * depth}" for branch in "01" for depth in range(10)
    }


def test_settings_of_its_baselines():
    for name, rule in (("fly", "fly"), ("fly-minus", "fly_minus"), ("random-loose", "random_loose")):
        p = loaded(name)
        assert (p.accept.rule, p.draft.gamma, p.prune.method, p.prune.alpha) == (rule, 10, "uniform", 0.9)
    assert (loaded("fly").accept.theta, loaded("fly").accept.window) == (0.2, 4)
    assert loaded("fly-minus").accept.theta == 0.2 and loaded("random-loose").accept.rate == 0.5


@pytest.mark.parametrize("rule", LOSSY)
def test_a_lossy_rule_does_not_draw(rule):
    with pytest.raises(ProfileError) as caught:
        loaded("vanilla-sd", **{"accept.rule": rule, "generate.temperature": "0.5"})
    assert str(caught.value) == (
        f"generate.temperature: {rule} compares greedy choices, and 0.5 samples tokens; "
        "nearest valid choice: generate.temperature: 0, or accept.rule: exact"
    )
    assert loaded("vanilla-sd", **{"generate.temperature": "0.5"}).generate.temperature == 0.5


def test_the_rules_that_are_lossy():
    assert {name for name in rules.names() if not rules.get(name).lossless} == set(LOSSY)


@pytest.mark.parametrize(
    ("key", "value"),
    [("lam", 1.5), ("lam", -0.1), ("similar", 0), ("theta", -1), ("window", 0), ("rate", 2), ("protect", [""])],
)
def test_values_out_of_range(key, value):
    with pytest.raises(ProfileError, match=rf"^accept\.{key}"):
        loaded("lvspec", **{f"accept.{key}": value})


def test_protected_words_as_one_text():
    assert loaded("lvspec", **{"accept.protect": "numbers, red"}).accept.protect == ("numbers", "red")


def test_a_rule_gets_what_its_constructor_takes():
    options = loaded("lvspec", **{"accept.lam": 0.3, "accept.theta": 0.9, "accept.window": 2}).accept.model_dump()
    target = {"eos": frozenset({1}), "protected": frozenset({2})}
    lvspec, fly = (build_part(rule, options, sampling=Sampling(), **target) for rule in (LVSpec, FlyRule))
    assert (lvspec.lam, lvspec.similar, lvspec.tolerance, lvspec.strict) == (0.3, 10, True, {1, 2})
    assert (fly.theta, fly.window, fly.strict) == (0.9, 2, {1, 2})
    assert isinstance(build_part(ExactRule, options, sampling=Sampling(), **target), ExactRule)


def test_a_profile_that_does_not_say_it_is_lossy_is_listed_so(monkeypatch, tmp_path):
    (tmp_path / "quiet.yaml").write_text("about: Quick.\naccept: {rule: lvspec}\n")
    (tmp_path / "silent.yaml").write_text("accept: {rule: fly}\n")
    (tmp_path / "open.yaml").write_text("about: Not lossless, and quick.\naccept: {rule: fly}\n")
    (tmp_path / "exact.yaml").write_text("about: Slow.\naccept: {rule: exact}\n")
    (tmp_path / "odd.yaml").write_text("about: Odd.\naccept: 3\n")
    monkeypatch.setattr("vidspec.config.files.user_folder", lambda: tmp_path)
    about = {info.name: info.about for info in profiles.available() if info.source == "user"}
    assert about == {
        "quiet": "Quick. Not lossless.",
        "silent": "Not lossless.",
        "open": "Not lossless, and quick.",
        "exact": "Slow.",
        "odd": "Odd.",
    }


def test_the_line_of_figures_says_so():
    assert "lossless" not in summary(record())
    assert "; not lossless, 12% of the tokens changed; " in summary(record(loose={"share": 0.124, "tokens": []}))


def test_options_of_a_rule_are_no_business_of_a_plugins():
    """A rule that takes nothing but the sampling is given nothing else."""
    seen = []
    rule = lambda sampling: seen.append(sampling) or SimpleNamespace()  # noqa: E731
    build_part(rule, {"lam": 1.0}, sampling=Sampling(), eos=frozenset())
    assert seen == [Sampling()]
