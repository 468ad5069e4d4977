"""A run is described by its spec alone: as JSON it is the same run, whatever variables and config say then."""

import json
from pathlib import Path

import pytest

from vidspec.config.run_spec import RunSpec
from vidspec.embedded.samples import shipped
from vidspec.errors import UsageError
from vidspec.runs.planning import plan

CLIP = str(shipped()[0])
RUNS = (
    {"prompt": "What moves?", "overrides": {"video.frames": "4", "generate.stop": ["."]}},
    {"prompt": ("One?", "Two?"), "profile": "vanilla-sd", "template": "ohwx, {caption}"},
    {"style": "events", "segment": "2s", "context": True},
    {"turn": "One?", "rewrite": "in short", "baseline": True, "batch": 2, "timeout": 3},
    {"overrides": {"models.target": "x/y", "models.draft": "x/z", "draft.kind": "model"}},
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def again(spec):
    return RunSpec.make(json.loads(spec.model_dump_json()))


@pytest.mark.parametrize("fields", RUNS)
def test_a_spec_is_the_same_run_as_json(fields):
    spec = RunSpec.make({"paths": CLIP, **fields})
    assert again(spec) == spec
    first, second = plan(spec), plan(again(spec))
    assert again(first.spec) == again(second.spec) and first.profile == second.profile
    (job,) = first.entries
    assert first.settings_of(job) == second.settings_of(job)


def test_a_planned_spec_has_what_variables_the_config_and_files_said(tmp_path, monkeypatch):
    (config := tmp_path / "config/vidspec/config.yaml").parent.mkdir(parents=True)
    config.write_text("profile: sd-tree\nvideo: {frames: 5, max_pixels: 900}\n")
    monkeypatch.setenv("VIDSPEC_VIDEO__FPS", "2")  # drops the config's frames
    Path("prompt.txt").write_text("What moves?\n")
    Path("shorter.txt").write_text("use 40 words\n")
    spec = RunSpec.make({"paths": CLIP, "prompt_file": "prompt.txt", "rewrite": "@shorter.txt"})
    planned = plan(spec)
    assert (planned.spec.prompt, planned.spec.prompt_file, planned.spec.rewrite) == (
        ("What moves?",),
        None,
        "use 40 words",
    )
    config.unlink()
    monkeypatch.delenv("VIDSPEC_VIDEO__FPS")
    for file in ("prompt.txt", "shorter.txt"):
        Path(file).unlink()
    later = plan(again(planned.spec))
    assert later.profile == planned.profile and later.profile.name == "sd-tree" and later.profile.video.fps == 2
    assert later.settings_of(later.entries[0]) == planned.settings_of(planned.entries[0])


def test_one_thing_changed_is_another_run():
    planned = plan(RunSpec.make({"paths": CLIP, "prompt": "What moves?", "segment": "3s"}))
    other = plan(planned.spec.model_copy(update={"prompt": ("Where to?",)}))
    assert other.profile.generate.prompt == "Where to?" and other.spec.segment == 3.0
    assert other.settings_of(other.entries[0]) != planned.settings_of(planned.entries[0])


@pytest.mark.parametrize(("named", "marked"), [({}, False), ({"models.pair": "embedded"}, True)])
def test_models_that_were_named_are_known(named, marked):
    assert plan(RunSpec.make({"paths": CLIP, "overrides": named})).spec.names_models is marked


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"segment": "none"}, "segment"),
        ({"batch": "few"}, "batch"),
        ({"start": "x"}, "start"),
        ({"start": "2", "end": "1"}, "end"),
        ({"max_fetch": "much"}, "max_fetch"),
    ],
)
def test_a_field_checks_itself(fields, field):
    with pytest.raises(UsageError) as refused:
        RunSpec.make({"paths": CLIP, **fields})
    assert refused.value.field == field
