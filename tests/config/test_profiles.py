from pathlib import Path

import pytest

from vidspec.acceptance.base import rules
from vidspec.config import files, profiles
from vidspec.config.profiles import available, group_equal_profiles, load, override, parse
from vidspec.drafting.base import drafters
from vidspec.errors import ProfileError
from vidspec.registry import Registry

NAMES = {
    "pruning": (
        "attention",
        "dycoke",
        "fastvid",
        "frame",
        "hippo",
        "none",
        "random",
        "specvlm",
        "uniform",
        "uv",
        "uv_attention",
        "uv_similarity",
        "window",
    ),
    "drafting": drafters.names(),
    "acceptance": ("exact", "fly", "fly_minus", "lvspec", "random_loose"),
    "schedules": ("autoregressive", "parallel", "sequential"),
    "lossy": ("dycoke", "fastv", "none", "pdrop", "sparsevlm"),
}
#: Those whose names appear nowhere else in this file are checked by what they say of themselves.
FILES = sorted(path.stem for path in (Path(__file__).parents[2] / "profiles").glob("*.yaml"))
PACKAGED = sorted(info.name for info in available() if info.source == "packaged")


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    monkeypatch.setattr(Registry, "names", lambda self: NAMES[self.part])
    monkeypatch.setattr("vidspec.config.files.user_folder", lambda: tmp_path / "user")


def problem(name="vanilla-sd", overrides=None, env=None):
    with pytest.raises(ProfileError) as caught:
        load(name, overrides, env or {})
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_packaged_profiles_load_and_say_what_they_are():
    assert len(PACKAGED) == len({info.name for info in available()}) >= 83 and set(FILES) < set(PACKAGED)
    for info in available():
        profile = load(info.name, env={})
        assert profile.name == info.name and profile.about == info.about
        lossless = rules.get(profile.accept.rule).lossless and profile.lossy.method == "none"
        assert ("Lossless" in info.about) == lossless and ("ot lossless." in info.about) == (not lossless)
        assert "\n" not in info.about and info.source == "packaged"


@pytest.mark.full
def test_profiles_that_are_the_same_thing_say_so():
    found = group_equal_profiles({name: load(name, env={}) for name in PACKAGED})
    twins = {first: others for first, others in found.items() if others}
    assert twins == {"hippo-no-vpsd": ("hippo-sequential",), "parallelvlm-alpha-0": ("pearl-syn-prefill",)}
    about = {info.name: info.about for info in available()}
    for alias, (name,) in twins.items():
        assert about[alias] == f"The same as {name}: {about[name]}" and alias in about[name]


def test_every_system_has_its_profiles():
    assert set(PACKAGED) >= {
        "ar", "vanilla-sd", "sd-tree", "onsd", "std", "self-sd", "self-specvlm", "specvlm", "specvlm-chain",
        *(f"tabed-{name}" for name in ("m", "t", "c", "p", "mt", "mt-star", "mtcp", "mtcp-star")),
        "pearl-video", "pearl-syn-prefill", "pearl-specvlm", "parallelvlm", "parallelvlm-alpha-0",
        "parallelvlm-alpha-0.5", "parallelvlm-attention", "parallelvlm-similarity", "parallelvlm-uv-attention",
        "self-parallelvlm", "hippo", "hippo-no-attn", "hippo-no-temp", "hippo-no-spa", "hippo-no-vpsd",
        "hippo-random", "hippo-frame", "hippo-fastvid", "hippo-dycoke",
    }  # fmt: skip


def test_packaged_profiles_are_what_their_names_say():
    def facts(name):
        p = load(name, env={})
        return p.schedule.kind, p.draft.kind, p.draft.gamma, p.prune.method, p.prune.alpha

    assert facts("ar") == ("autoregressive", "none", 5, "none", 0.0)
    assert facts("vanilla-sd") == ("sequential", "model", 5, "none", 0.0)
    # SpecVLM's tables have a tree under every pruner.
    pruned = {"rand": "random", **{name: name for name in ("uniform", "attention", "frame", "fastvid", "dycoke")}}
    for name, method in {**pruned, **{f"window-{place}": "window" for place in ("front", "middle", "end")}}.items():
        tree, chain = load(f"sd-{name}", env={}), load(f"sd-{name}-chain", env={})
        assert facts(f"sd-{name}") == facts(f"sd-{name}-chain") == ("sequential", "model", 5, method, 0.9)
        assert (tree.draft.topology, chain.draft.topology) == ("tree", "chain")
        assert tree.prune == chain.prune and (method != "window" or name == f"window-{tree.prune.place}")
    assert {load(name, env={}).draft.topology for name in ("vanilla-sd", "self-sd", "lvspec", "fly")} == {"chain"}
    assert facts("specvlm-chain") == ("sequential", "model", 5, "specvlm", 0.9)
    assert load("specvlm-chain", env={}).prune.lam_r is None
    assert facts("specvlm") == ("sequential", "model", 5, "specvlm", 0.9)
    assert load("specvlm", env={}).draft.topology == load("sd-tree", env={}).draft.topology == "tree"
    assert facts("onsd") == ("sequential", "text_only", 5, "none", 0.0)
    assert facts("std") == ("sequential", "sparse_kv", 9, "none", 0.0)
    assert facts("self-specvlm") == ("sequential", "self", 5, "specvlm", 0.9)
    assert facts("parallelvlm") == ("parallel", "model", "auto", "uv", 0.9)
    assert facts("self-parallelvlm") == ("parallel", "self", "auto", "uv", 0.9)
    assert facts("hippo") == ("parallel", "model", "auto", "hippo", 0.9)
    prefills = {
        name: load(name, env={}).schedule for name in ("pearl-video", "pearl-syn-prefill", "parallelvlm", "hippo")
    }
    assert {name: one.prefill for name, one in prefills.items()} == {
        "pearl-video": "sequential", "pearl-syn-prefill": "parallel", "parallelvlm": "parallel", "hippo": "parallel",
    }  # fmt: skip
    assert prefills["parallelvlm"].startup == "window" and prefills["hippo"].startup == "fit"
    assert facts("uv-sequential") == ("sequential", "model", 5, "uv", 0.9)
    assert load("uv-sequential", env={}).prune.layer is None


@pytest.mark.parametrize(
    ("ending", "terms"),
    [
        ("", (True, True, True)),
        ("-no-attn", (False, True, True)),
        ("-no-temp", (True, False, True)),
        ("-no-spa", (True, True, False)),
    ],
)
def test_hippo_and_its_ablations(ending, terms):
    prune = load(f"hippo-sequential{ending}", env={}).prune
    assert (prune.method, prune.alpha) == ("hippo", 0.9)
    assert (prune.attention_term, prune.temporal_term, prune.spatial_term) == terms


def test_hippo_without_any_term_is_refused():
    overrides = {f"prune.{term}_term": "false" for term in ("attention", "temporal", "spatial")}
    assert problem("hippo-sequential", overrides) == (
        "prune.attention_term: hippo needs one of its three terms, and all are off; "
        "nearest valid choice: prune.attention_term: true"
    )


def test_an_installed_package_looks_beside_its_modules(monkeypatch, tmp_path):
    (tmp_path / "vidspec" / "_profiles").mkdir(parents=True)
    (tmp_path / "vidspec" / "_profiles" / "mine.yaml").write_text("about: in the wheel\n")
    monkeypatch.setattr(files, "__file__", str(tmp_path / "vidspec" / "profile" / "files.py"))
    assert [(info.name, info.about) for info in available()] == [("mine", "in the wheel")]


def test_precedence_flag_variable_profile_default():
    env = {"VIDSPEC_PRUNE__ALPHA": "0.8"}
    assert load("sd-rand", env={}).prune.alpha == 0.9
    assert load("sd-rand", env=env).prune.alpha == 0.8
    assert load("sd-rand", {"prune.alpha": "0.7"}, env).prune.alpha == 0.7
    assert load("sd-rand", env={}).generate.top_p == 1.0


def test_the_environment_of_the_process_is_read(monkeypatch):
    monkeypatch.setenv("VIDSPEC_DRAFT__GAMMA", "3")
    assert load("vanilla-sd").draft.gamma == 3
    assert load("vanilla-sd", env={}).draft.gamma == 5


def test_variables_that_are_not_keys():
    env = {
        "VIDSPEC_DEBUG": "1",
        "VIDSPEC_PROFILE": "x",
        "VIDSPEC_OTHER": "1",
        "VIDSPEC_PRUNE__ALPHA": "",
        "PRUNE__A": "1",
    }
    assert load("sd-rand", env=env) == load("sd-rand", env={})
    assert (
        problem(env={"VIDSPEC_PRUNE_ALPHA": "1"})
        == "VIDSPEC_PRUNE_ALPHA: not a key; did you mean VIDSPEC_PRUNE__ALPHA?"
    )


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("VIDSPEC_PROFIL", "a variable of vidspec; did you mean VIDSPEC_PROFILE?"),
        ("VIDSPEC_TARGET", "a key; did you mean VIDSPEC_MODELS__TARGET?"),
        ("VIDSPEC_DRAFT", "a key; did you mean VIDSPEC_MODELS__DRAFT?"),
        ("VIDSPEC_MAX_NEW_TOKENS", "a key; did you mean VIDSPEC_GENERATE__MAX_NEW_TOKENS?"),
    ],
)
def test_a_variable_that_would_change_nothing_is_refused(variable, meant):
    assert problem(env={variable: "x"}) == f"{variable}: not {meant}"


def test_max_pixels_by_variable_keeps_its_single_underscore():
    assert load("ar", env={"VIDSPEC_VIDEO__MAX_PIXELS": "99"}).video.max_pixels == 99


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"prune.alfa": 1}, "prune.alfa: unknown key; did you mean prune.alpha?"),
        ({"prnue.method": "uniform"}, "prnue.method: unknown key; did you mean prune.method?"),
        ({"alpha": 1}, "alpha: unknown key; did you mean prune.alpha?"),
        ({"pruning.alpha": 1}, "pruning.alpha: unknown key; did you mean prune.alpha?"),
        (
            {"xyz.q": 1},
            "xyz.q: unknown key; sections: models, video, draft, prune, schedule, workers, accept, lossy, generate",
        ),
        ({"prune": 1}, "prune: is a section of keys, such as prune.method"),
        ({"draft.gamma": "0"}, "draft.gamma: must be auto or a whole number from 1 to 1024, not '0'"),
        (
            {"draft.gamma": "auto", "draft.topology": "tree"},
            "draft.gamma: auto applies to chains, and draft.topology is tree; "
            "nearest valid choice: draft.gamma: 5, or draft.topology: chain",
        ),
        ({"draft.topology": "star"}, "draft.topology: must be 'chain', 'tree' or 'adaptive', not 'star'"),
        (
            {"draft.topology": "tree", "draft.tree": "0 11"},
            "draft.tree: node 11 has no parent 1; nearest valid choice: name both, not '0 11'",
        ),
        (
            {"draft.topology": "tree", "schedule.kind": "parallel"},
            "draft.topology: the parallel schedule drafts a chain; "
            "nearest valid choice: draft.topology: chain, or schedule.kind: sequential",
        ),
        (
            {"draft.topology": "tree", "draft.kind": "ensemble"},
            "draft.topology: an ensemble drafts a chain; nearest valid choice: draft.topology: chain",
        ),
        (
            {"draft.kind": "sparse_kv", "schedule.kind": "parallel"},
            "draft.kind: sparse_kv needs more of the target than token ids, which is all that the parallel schedule "
            "sends; nearest valid choice: draft.kind: model, or schedule.kind: sequential",
        ),
        (
            {"draft.kind": "text_only", "prune.method": "uniform"},
            "prune.method: uniform chooses what a draft sees, and draft.kind text_only chooses itself; "
            "nearest valid choice: prune.method: none",
        ),
        (
            {"schedule.prefill": "parallel"},
            "schedule.prefill: parallel needs two workers, and schedule.kind is sequential; "
            "nearest valid choice: schedule.prefill: sequential, or schedule.kind: parallel",
        ),
        ({"models.dtype": "fp8"}, "models.dtype: must be 'auto', 'float32', 'bfloat16' or 'float16', not 'fp8'"),
        (
            {"models.device": "cuda:x"},
            "models.device: must be auto, cpu, cuda, cuda:N, xpu, xpu:N or mps, not 'cuda:x'",
        ),
        ({"generate.top_p": 0}, "generate.top_p: must be greater than or equal to 0.000001, not 0"),
        (
            {"generate.repetition_penalty": 0},
            "generate.repetition_penalty: must be greater than or equal to 0.000001, not 0",
        ),
        ({"generate.presence_penalty": 2.5}, "generate.presence_penalty: must be less than or equal to 2, not 2.5"),
        ({"generate.no_repeat_ngram": -1}, "generate.no_repeat_ngram: must be greater than or equal to 0, not -1"),
        ({"generate.temperature": "nan"}, "generate.temperature: must be a finite number, not 'nan'"),
        (
            {"prune.method": "unifrom"},
            "prune.method: unknown pruner 'unifrom'; did you mean uniform? "
            "valid: attention, dycoke, fastvid, frame, hippo, none, random, specvlm, uniform, uv, "
            "uv_attention, uv_similarity, window",
        ),
        (
            {"draft.kind": "x"},
            "draft.kind: unknown drafter 'x'; valid: dflash, eagle3, ensemble, hybrid, model, mtp, ngram, none, "
            "recycle, self, sparse_kv, suffix, text_only",
        ),
        (
            {"accept.rule": "x"},
            "accept.rule: unknown acceptance rule 'x'; valid: exact, fly, fly_minus, lvspec, random_loose",
        ),
        (
            {"schedule.kind": "x"},
            "schedule.kind: unknown schedule 'x'; valid: autoregressive, parallel, sequential",
        ),
        (
            {"draft.kind": "none"},
            "schedule.kind: sequential needs a draft, and draft.kind is none; nearest valid choice: "
            "schedule.kind: autoregressive, or draft.kind: model",
        ),
        (
            {"schedule.kind": "autoregressive"},
            "schedule.kind: autoregressive uses no draft, and draft.kind is model; nearest valid choice: "
            "schedule.kind: sequential, or draft.kind: none",
        ),
        (
            {"prune.alpha": 0.8},
            "prune.alpha: 0.8 has no effect with prune.method none; "
            "nearest valid choice: prune.alpha: 0, or prune.method: uniform",
        ),
        (
            {"video.frames": 4, "video.fps": 1},
            "video.fps: excludes video.frames; nearest valid choice: video.fps: 1 alone",
        ),
        (
            {"models.pair": "embedded", "models.target": "x"},
            "models.pair: excludes models.target and models.draft; nearest valid choice: models.pair: embedded alone",
        ),
        (
            {
                **{"schedule.kind": "parallel", "schedule.prefill": "parallel"},
                **{"prune.method": "uniform", "prune.when": "late", "prune.positions": "compact"},
            },
            "prune.when: late prunes the cache at its original positions, and prune.positions is compact; "
            "nearest valid choice: prune.when: wait, or prune.positions: original",
        ),
        (
            {"models.draft": "x"},
            "models.target: is needed with models.draft; nearest valid choice: name a target, or models.pair: embedded",
        ),
        (
            {"models.target": "x"},
            "models.draft: is needed, since this profile drafts with a smaller model; nearest valid choice: "
            "name a draft of the target's family (`vidspec models` lists some), or take the profile ar",
        ),
    ],
)
def test_mistakes_verbatim(overrides, message):
    assert problem(overrides=overrides) == message


def test_pruning_without_a_draft_is_refused():
    message = problem("ar", {"prune.method": "random"})
    assert message == (
        "prune.method: random prunes what the draft sees, and draft.kind is none; "
        "nearest valid choice: prune.method: none"
    )


def test_a_mistake_says_where_it_was_made(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("prune: {alfa: 1}\n")
    assert problem(str(file)) == f"prune.alfa: unknown key; did you mean prune.alpha? (set by {file})"
    assert problem("sd-rand", env={"VIDSPEC_PRUNE__ALPHA": "2"}) == (
        "VIDSPEC_PRUNE__ALPHA: must be less than or equal to 0.99, not '2'"
    )


def test_a_layer_takes_back_what_it_contradicts():
    fps = load("vanilla-sd", {"video.fps": "2"}, {})
    assert (fps.video.frames, fps.video.fps) == (None, 2.0)
    again = override(fps, {"video.frames": 8})
    assert (again.video.frames, again.video.fps) == (8, None)
    real = load("vanilla-sd", {"models.target": "t", "models.draft": "d"}, {})
    assert (real.models.pair, real.models.target, real.models.draft) == (None, "t", "d")
    built_in = override(real, {"models.pair": "embedded"})
    assert (built_in.models.pair, built_in.models.target, built_in.models.draft) == ("embedded", None, None)
    assert load("vanilla-sd", {"video.frames": 8}, {"VIDSPEC_VIDEO__FPS": "2"}).video.frames == 8


def test_an_alpha_belongs_to_its_method():
    assert override(load("sd-rand", env={}), {"prune.method": "none"}).prune.alpha == 0
    assert override(load("vanilla-sd", env={}), {"prune.method": "uniform"}).prune.alpha == 0.9
    kept = load("sd-rand", {"prune.alpha": 0.5}, {})
    assert override(kept, {"prune.method": "uniform"}).prune.alpha == 0.5


def test_override_without_anything_is_the_same_profile():
    profile = load("ar", env={})
    assert override(profile, None) is profile


def test_text_that_looks_like_yaml_stays_text():
    assert load("ar", {"generate.prompt": "null: [what]"}, {}).generate.prompt == "null: [what]"
    assert load("ar", {"generate.prompt": "null"}, {}).generate.prompt == "null"
    assert load("ar", {"video.max_pixels": "null"}, {}).video.max_pixels is None


def test_the_target_alone_is_enough_without_a_draft():
    assert load("ar", {"models.target": "x"}, {}).models.target == "x"


def test_defaults_of_an_empty_profile():
    profile = parse({"name": "x"})
    assert profile.models.pair == "embedded" and profile.video.frames == 32
    assert (profile.draft.kind, profile.prune.alpha, profile.accept.rule) == ("none", 0.0, "exact")
    assert profile.generate.max_new_tokens == 512 and profile.generate.temperature == 0


def test_a_profile_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        load("ar", env={}).draft.gamma = 3


def test_a_file_is_taken_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.yaml").write_text("about: my own\nvideo:\n")
    monkeypatch.chdir(tmp_path)
    assert load("sub/mine.yaml", env={}).about == "my own"
    assert load("sub/mine.yaml", env={}).name == "mine"
    monkeypatch.chdir("sub")
    assert load("mine.yaml", env={}).video.frames == 32


def test_the_user_folder_comes_first(tmp_path):
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "ar.yaml").write_text("name: ar\nabout: mine\n")
    (tmp_path / "user" / "broken.yaml").write_text("a: [\n")
    infos = {info.name: info for info in available()}
    assert infos["ar"].source == "user" and load("ar", env={}).about == "mine"
    assert infos["broken"].about.startswith("unreadable: ")
    assert infos["sd-rand"].source == "packaged"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b"name: x\nprune: {method: none\nvideo: 1\n",
            "{path}: line 3, column 6: not YAML: expected ',' or '}}', but got ':'",
        ),
        (b"- a\n", "{path}: a profile is a mapping of keys, not list"),
        (b"", "{path}: a profile is a mapping of keys, not NoneType"),
        (b"\xff\xfe\x00", "{path}: is not UTF-8 text"),
        (b"prune: 5\n", "prune: is a section of keys, such as prune.method (set by {path})"),
    ],
)
def test_files_that_are_no_profiles(tmp_path, text, message):
    path = tmp_path / "x.yaml"
    path.write_bytes(text)
    assert problem(str(path)) == message.format(path=path)


def test_names_and_files_that_do_not_exist():
    assert (
        problem("vanila-sd")
        == "no profile is called 'vanila-sd'; did you mean vanilla-sd? (`vidspec profiles` lists them)"
    )
    assert problem("zzz") == "no profile is called 'zzz' (`vidspec profiles` lists them)"
    assert problem("no/such.yaml") == "no/such.yaml: there is no such profile file"


def test_profiles_of_the_checkout_are_the_packaged_ones():
    assert files.packaged_folder().is_dir()
    assert sorted(path.stem for path in files.packaged_folder().glob("*.yaml")) == FILES and len(FILES) <= 40


HOT = {"generate.temperature": 0.7}


@pytest.mark.parametrize(
    ("name", "overrides", "same"),
    [
        ("vanilla-sd", {}, True),
        ("vanilla-sd", HOT, False),
        ("vanilla-sd", {**HOT, "draft.gamma": "auto"}, True),
        ("parallelvlm", {**HOT, "draft.gamma": 4}, True),
        ("sd-tree", HOT, True),
        ("sd-adaptive-tree", {**HOT, "draft.gamma": 4}, True),
        ("ar", HOT, True),
    ],
)
def test_where_drawn_tokens_are_those_of_plain_decoding(name, overrides, same):
    """That it is so: ``tests/test_lossless.py``."""
    assert profiles.load(name, overrides, env={}).token_for_token == same


@pytest.mark.parametrize("overrides", [["prune.alpha"], 5, {5: 1}])
def test_overrides_are_a_dictionary(overrides):
    assert problem(overrides=overrides) == 'overrides: must be a dictionary with dotted keys ({"prune.alpha": 0.8})'
