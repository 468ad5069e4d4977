"""Bases, variants, aliases and groups of profile files."""

from pathlib import Path

import pytest

from vidspec.config import profiles
from vidspec.config.profiles import available, load
from vidspec.config.user_config import UserConfig, resolve
from vidspec.errors import ProfileError
from vidspec.registry import Registry


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """The user's own profiles; no search for plugins with each profile."""
    path = tmp_path / "own"
    path.mkdir()
    monkeypatch.setattr("vidspec.config.files.user_folder", lambda: path)
    monkeypatch.setattr(Registry, "_plugins", lambda self: {})
    return path


def write(path, text):
    path.write_text(text)
    return str(path)


def problem(name):
    with pytest.raises(ProfileError) as caught:
        load(name, env={})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def said(name):
    """Return the keys that differ from the defaults."""
    plain = profiles.flatten_keys(profiles.parse({"name": "x"}).model_dump())
    own = profiles.flatten_keys(load(name, env={}).model_dump(exclude={"name", "about"}))
    return {key: value for key, value in own.items() if value != plain[key]}


IN_TURNS = {"draft.kind": "model", "schedule.kind": "sequential"}
TENTH = {**IN_TURNS, "prune.alpha": 0.9}
BESIDE = {**TENTH, "draft.gamma": "auto", "schedule.kind": "parallel", "schedule.prefill": "parallel"}
LATE = {**BESIDE, "prune.when": "late", "schedule.startup": "fit"}
LOOSE = {**TENTH, "draft.gamma": 10, "prune.method": "uniform"}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("vanilla-sd", IN_TURNS),
        ("vanilla-sd-auto", {**IN_TURNS, "draft.gamma": "auto"}),
        ("sd-window-end-chain", {**TENTH, "prune.method": "window", "prune.place": "end"}),
        ("self-specvlm", {**TENTH, "draft.kind": "self", "draft.topology": "tree", "prune.method": "specvlm"}),
        (
            "hippo-no-attn",
            {**LATE, "prune.method": "hippo", "prune.attention_term": False},
        ),
        ("hippo-frame", {**LATE, "prune.method": "frame"}),
        ("hippo-no-vpsd", {**TENTH, "prune.method": "hippo", "prune.keys": "visual"}),
        ("parallelvlm-alpha-0.5", {**BESIDE, "prune.method": "uv", "prune.alpha": 0.5}),
        ("lvspec-0.2", {**LOOSE, "accept.rule": "lvspec", "accept.lam": 0.2, "accept.tolerance": False}),
        ("fly-minus", {**LOOSE, "accept.rule": "fly_minus", "accept.theta": 0.2}),
        ("random-loose", {**LOOSE, "accept.rule": "random_loose"}),
        ("fastv", {"lossy.retention": 0.1, "lossy.method": "fastv", "lossy.layer": 2}),
        (
            "tabed-mtcp-star",
            {
                **IN_TURNS,
                "draft.kind": "ensemble",
                "draft.contexts": ("video", "text", "caption", "pooled"),
                "draft.weights": "softmax",
            },
        ),
    ],
)
def test_what_packaged_profiles_are(name, keys):
    assert said(name) == keys and load(name, env={}).name == name


def test_a_profile_says_only_what_differs_from_its_base(folder):
    write(folder / "mine.yaml", "about: Mine.\nbase: specvlm\nprune: {alpha: 0.8}\nvideo: {fps: 2}\n")
    mine, base = load("mine", env={}), load("specvlm", env={})
    assert (mine.name, mine.about, mine.prune.alpha) == ("mine", "Mine.", 0.8)
    assert (mine.video.frames, mine.video.fps) == (None, 2.0)  # a layer takes back what it contradicts
    assert (mine.draft, mine.prune.method) == (base.draft, "specvlm")
    write(folder / "quiet.yaml", "base: mine\nprune: {method: none}\n")
    assert (load("quiet", env={}).about, load("quiet", env={}).prune.alpha) == ("", 0)


def test_bases_are_found_by_name_and_from_beside_the_file(folder, tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "common.yaml", "base: vanilla-sd\ndraft: {gamma: 3}\nvariants: {four: {draft: {gamma: 4}}}\n")
    one = write(tmp_path / "sub" / "one.yaml", "base: ../common.yaml\n")
    two = write(tmp_path / "sub" / "two.yaml", "base: ../common.yaml:four\nvariants:\n  far: {base: ar, draft: {}}\n")
    assert (load(one, env={}).draft.gamma, load(two, env={}).draft.gamma) == (3, 4)
    assert load(f"{two}:far", env={}).schedule.kind == "autoregressive"
    assert problem(f"{two}:fat") == ("no profile is called 'fat'; did you mean far? (`vidspec profiles` lists them)")
    assert profiles.exists(one) and not profiles.exists(one + "x.yaml")


def test_one_that_hides_a_packaged_one_may_be_based_on_it_and_changes_no_other(folder):
    write(folder / "vanilla-sd.yaml", "base: vanilla-sd\ndraft: {gamma: 2}\n")
    assert load("vanilla-sd", env={}).draft.gamma == 2
    assert load("sd-rand", env={}).draft.gamma == 5
    write(folder / "next.yaml", "base: vanilla-sd\n")
    assert load("next", env={}).draft.gamma == 2


def test_variants_and_aliases_can_be_named(folder):
    write(
        folder / "mine.yaml",
        "base: vanilla-sd\nabout: Mine.\naliases: [ours]\n"
        "variants:\n"
        "  mine-3: {about: Three., draft: {gamma: 3}}\n"
        "  mine-3-wide: {base: mine-3, group: wide, aliases: [big], video: {frames: 64}}\n"
        "  sd-rand: {draft: {gamma: 9}}\n",
    )
    assert [load(name, env={}).draft.gamma for name in ("mine", "ours", "mine-3", "big", "sd-rand")] == [5, 5, 3, 3, 9]
    big = load("big", env={})
    assert (big.name, big.video.frames) == ("big", 64)
    assert profiles.group_equal_profiles(
        {name: load(name, env={}) for name in ("mine", "big", "mine-3-wide", "ours")}
    ) == {
        "mine": ("ours",),
        "big": ("mine-3-wide",),
    }
    listed = {info.name: (info.about, info.group) for info in available() if info.source == "user"}
    assert listed == {
        "mine": ("Mine.", "exact"),
        "ours": ("The same as mine: Mine.", "exact"),
        "mine-3": ("Three.", "exact"),
        "mine-3-wide": ("", "wide"),
        "big": ("The same as mine-3-wide", "wide"),
        "sd-rand": ("", "exact"),
    }
    assert [info.name for info in available()][-1] == "mine-3-wide"  # groups of one's own come last


def test_a_group_is_what_the_resolved_profile_does(folder):
    write(folder / "a.yaml", "base: lvspec\nabout: Quick.\n")
    write(folder / "b.yaml", "base: fastv\n")
    write(folder / "c.yaml", "base: hippo\n")
    write(folder / "d.yaml", "base: lvspec\naccept: {rule: exact}\n")
    found = {info.name: (info.group, info.about) for info in available() if info.source == "user"}
    assert found == {
        "a": ("loose", "Quick. Not lossless."),
        "b": ("lossy", "Not lossless."),
        "c": ("parallel", ""),
        "d": ("exact", ""),
    }


def test_the_example_of_the_documentation(folder):
    page = (Path(__file__).parents[2] / "docs" / "use" / "profiles.md").read_text()
    write(folder / "steady.yaml", page.split("```yaml\n# steady.yaml")[1].split("\n", 1)[1].split("```")[0])
    wide = load("steady-3-wide", env={})
    assert (wide.prune.method, wide.generate.seed, wide.draft.gamma, wide.video.frames) == ("specvlm", 7, 3, 128)
    groups = {info.name: info.group for info in available() if info.source == "user"}
    assert groups == {"steady": "exact", "calm": "exact", "steady-3": "mine", "steady-3-wide": "exact"}


def test_bases_that_are_none_are_one_line(folder):
    one = folder / "one.yaml"
    write(one, "base: two\n")
    write(folder / "two.yaml", "base: three\n")
    write(folder / "three.yaml", "base: one\n")
    assert problem("one") == f"base: one -> two -> three -> one is circular (set by {folder / 'three.yaml'})"
    write(one, "base: ./one.yaml\n")
    assert "is circular" in problem("one")
    write(one, "base: vanila-sd\n")
    assert problem("one") == f"base: no profile is called 'vanila-sd'; did you mean vanilla-sd? (set by {one})"
    write(one, "base: one\n")
    assert problem("one").startswith("base: no profile is called 'one'")
    write(one, "base: no/such.yaml\n")
    assert problem("one") == f"base: no/such.yaml: there is no such profile file (set by {one})"
    write(folder / "two.yaml", "a: [\n")
    write(one, "base: two\n")
    assert problem("one").startswith(f"{folder / 'two.yaml'}: line 2, column 1: not YAML")
    about = {info.name: info.about for info in available() if info.source == "user"}
    assert about["one"].startswith("unreadable: ") and "goes round" not in about["one"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: 5", "base: must be a valid string, not 5 (set by {path})"),
        ("aliases: x", "aliases: must be a valid list, not 'x' (set by {path})"),
        (
            "rank: first",
            "rank: must be a valid integer, unable to parse string as an integer, not 'first' (set by {path})",
        ),
        ("variants: [x]", "variants: must be a valid dictionary, not ['x'] (set by {path})"),
        ("variants: {x: }", "variants.x: must be a valid dictionary, not None (set by {path})"),
        ("variants: {x: {group: 3}}", "group: must be a valid string, not 3 (set by {path}:x)"),
        ("variants: {x: {}}\naliases: [x]", "{path}: two profiles are called 'x'"),
    ],
)
def test_files_that_are_wrong(folder, text, message):
    path = folder / "mine.yaml"
    write(path, text)
    assert problem("mine") == message.format(path=path)


def test_a_mistake_in_a_base_says_where_it_was_made(folder):
    write(folder / "low.yaml", "base: vanilla-sd\nprune: {alfa: 1}\nvariants: {high: {draft: {gamma: 0}, base: ar}}\n")
    write(folder / "top.yaml", "base: low\n")
    assert problem("top") == f"prune.alfa: unknown key; did you mean prune.alpha? (set by {folder / 'low.yaml'})"
    assert problem("high").endswith(f"not 0 (set by {folder / 'low.yaml'}:high)")


def test_plugins_of_a_base_are_loaded_too(folder, monkeypatch):
    (folder / "sub").mkdir()
    base = write(folder / "sub" / "base.yaml", "base: vanilla-sd\nplugins: one.py\n")
    write(folder / "top.yaml", f"base: {base}\nplugins: [two.py]\n")
    monkeypatch.setattr("vidspec.config.schema.load_plugin", lambda file: None)
    assert load("top", env={}).plugins == (str(folder / "sub" / "one.py"), str(folder / "two.py"))


def test_a_base_is_named_as_the_source_of_its_values(folder):
    """A flag wins over a variable, that over a profile of one's own and its bases, those over the config."""
    low = folder / "low.yaml"
    write(low, "base: sd-rand\nvideo: {frames: 4}\nvariants:\n  top: {generate: {seed: 7}}\n")
    keys = {"video.frames": 9, "models.target": "big", "models.draft": "small", "generate.max_new_tokens": 8}
    defaults = UserConfig(folder / "config.yaml", keys=keys)
    found = resolve("top", {"generate.top_p": 0.5}, defaults, {"VIDSPEC_PRUNE__ALPHA": "0.5"})
    assert (found.profile.video.frames, found.profile.models.target) == (4, "big")
    sources = {key: source.rpartition("/")[2] for key, source in found.sources.items()}
    assert {key: sources[key] for key in sources if sources[key] != "default"} == {
        "name": "low.yaml:top",
        "models.target": "config.yaml",
        "models.draft": "config.yaml",
        "video.frames": "low.yaml",
        "draft.kind": "vanilla-sd.yaml",
        "draft.topology": "sd-tree.yaml",
        "draft.gamma": "vanilla-sd.yaml",
        "prune.method": "sd-rand.yaml",
        "prune.alpha": "VIDSPEC_PRUNE__ALPHA",
        "schedule.kind": "vanilla-sd.yaml",
        "accept.rule": "vanilla-sd.yaml",
        "generate.max_new_tokens": "config.yaml",
        "generate.temperature": "vanilla-sd.yaml",
        "generate.seed": "low.yaml:top",
        "generate.top_p": "flag",
    }


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("base: ar\nabout: a\nabout: b\n", 3, "about"),
        ("base: ar\nvideo:\n  frames: 4\n  fps: null\n  frames: 8\n", 5, "frames"),
        ("base: ar\nvideo: {frames: 4, frames: 4}\n", 2, "frames"),
        ("base: ar\n'base': sd\n", 2, "base"),
    ],
)
def test_a_key_is_not_set_twice(tmp_path, text, line, key):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    said = problem(str(file))
    assert said.startswith(f"{file}: line {line}, column ") and f": {key}: is set twice (" in said


def test_a_key_of_the_config_is_not_set_twice(tmp_path):
    from vidspec.config.user_config import read_config
    from vidspec.errors import UsageError

    file = tmp_path / "config.yaml"
    file.write_text("format: json\nmodels: {pair: embedded}\nmodels: {device: cpu}\n")
    with pytest.raises(UsageError, match=r"config.yaml: line 3, column 1: models: is set twice"):
        read_config(file)
