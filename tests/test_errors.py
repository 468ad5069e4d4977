"""Errors mark the options that they are about; each door spells them in its own words."""

import pickle

import pytest

import vidspec
from vidspec.cli.keys import spell_flags
from vidspec.config import profiles
from vidspec.config.keywords import spell_keyword
from vidspec.config.run_spec import RunSpec
from vidspec.errors import ProfileError, UsageError, option


def spec_error(**fields):
    with pytest.raises(UsageError) as refused:
        RunSpec.make(fields)
    return refused.value


def test_an_error_of_a_run_has_its_field():
    error = spec_error(paths="a.mp4", context=True)
    assert (error.field, str(error)) == ("context", "context needs segment (segment='30s' context=True)")
    error.spelling = spell_flags(error, ["a.mp4", "--context"])
    assert str(error) == "--context needs --segment (--segment 30s --context)"


def test_an_error_of_a_profile_has_its_key():
    with pytest.raises(ProfileError) as refused:
        profiles.load("ar", {"draft.topology": "tree", "draft.gamma": "auto"}, {"VIDSPEC_DRAFT__KIND": "model"})
    error = refused.value
    assert error.field == "draft.gamma" and error.message.endswith(
        "auto applies to chains, and draft.topology is tree; "
        "nearest valid choice: draft.gamma: 5, or draft.topology: chain"
    )
    error.spelling = spell_keyword
    assert error.message.endswith("""choice: overrides={"draft.gamma": 5}, or overrides={"draft.topology": 'chain'}""")
    error.spelling = spell_flags(error, ["--set", "draft.gamma=auto"])
    assert error.message.endswith("choice: --set draft.gamma=5, or --set draft.topology=chain")


@pytest.mark.parametrize(
    ("args", "env", "shown"),
    [
        (["--frames", "0"], {}, "--frames"),
        (["--set", "video.frames=0"], {}, "video.frames"),
        ([], {"VIDSPEC_VIDEO__FRAMES": "0"}, "VIDSPEC_VIDEO__FRAMES"),
    ],
)
def test_a_key_is_named_by_what_set_it(args, env, shown):
    with pytest.raises(ProfileError, match="must be greater than or equal to 1") as refused:
        profiles.load("ar", {} if env else {"video.frames": 0}, env)
    refused.value.spelling = spell_flags(refused.value, args)
    assert refused.value.message.startswith(f"{shown}: ")


def test_a_key_of_a_file_is_named_as_the_file_names_it(tmp_path):
    (file := tmp_path / "own.yaml").write_text("video: {frames: 0}\n")
    with pytest.raises(ProfileError) as refused:
        profiles.load(str(file), {"generate.temperature": 0}, {})
    refused.value.spelling = spell_flags(refused.value, ["--temperature", "0"])
    assert str(refused.value) == f"video.frames: must be greater than or equal to 1, not 0 (set by {file})"


def test_python_names_keywords(tmp_path):
    with pytest.raises(ProfileError, match=r"^frames: must be greater than or equal to 1, not 0$"):
        vidspec.run(tmp_path / "a.mp4", frames=0)
    with pytest.raises(ProfileError, match=r"^pair: excludes target and draft; nearest valid choice: pair='embedded' "):
        vidspec.run(tmp_path / "a.mp4", pair="embedded", target="x/y")


def test_values_of_users_are_no_marks():
    error = UsageError(f"{option('template', '{a} --b')}: is wrong", hint="{segment}")
    assert str(pickle.loads(pickle.dumps(error))) == "template='{a} --b': is wrong ({segment})"


def test_a_file_in_capitals_is_no_variable(tmp_path):
    (file := tmp_path / "VIDSPEC_OWN.YAML").with_suffix(".yaml").write_text("video: {frames: 0}\n")
    with pytest.raises(ProfileError, match=r"^video\.frames: must be"):
        profiles.load(str(file.with_suffix(".yaml")), {}, {})
    error = ProfileError(f"{option('video.frames')}: is wrong", sources={"video.frames": "/OWN/MINE"})
    assert error.message == "video.frames: is wrong"
