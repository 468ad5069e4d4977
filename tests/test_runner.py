"""Runs from Python, with a captioner without models: what the command line does, a caption at a time."""

import json
import logging
from itertools import islice
from pathlib import Path

import pytest
import typer

import vidspec
from tests.cli.conftest import isolated  # noqa: F401
from tests.fake_captioner import SHORT, TEXT, FakeCaptioner
from vidspec.cli.app import app
from vidspec.config import profiles
from vidspec.config.run_spec import RunSpec, flag_of
from vidspec.config.sections import Flag
from vidspec.embedded.prompts import NOTICE
from vidspec.errors import ProfileError, UsageError, VideoError


@pytest.fixture
def clips():
    for name in ("a.mp4", "good.mp4", "missing.mp4"):
        Path("clips", name).parent.mkdir(exist_ok=True)
        Path("clips", name).write_bytes(b"x")
    return "clips"


def paths(captions):
    return [(Path(one.path).name, one.caption) for one in captions]


def test_captions_are_yielded_written_and_not_made_again(clips, capsys):
    found = paths(vidspec.run(clips, output="out.jsonl", batch=1))
    assert found == [("a.mp4", TEXT), ("good.mp4", TEXT), ("missing.mp4", None)]
    assert [json.loads(line)["caption"] for line in Path("out.jsonl").read_text().splitlines()] == [TEXT, TEXT, None]
    assert list(vidspec.run(clips, output="out.jsonl")) == []
    assert paths(vidspec.run(clips, output="out.jsonl", retry_failed=True)) == [("missing.mp4", None)]
    assert len(FakeCaptioner.made) == 2 and capsys.readouterr().out.replace("a library prints this\n", "") == ""


def test_without_an_output_captions_are_only_yielded(clips, capsys):
    before = sorted(Path.cwd().rglob("*"))
    assert len(list(vidspec.run([Path(clips, "good.mp4"), "clips/a.mp4"]))) == 2
    assert TEXT not in capsys.readouterr().out and sorted(Path.cwd().rglob("*")) == before


def test_a_run_that_is_left_keeps_what_is_done(clips):
    assert len(list(islice(vidspec.run(clips, output="out.jsonl", batch=1), 1))) == 1
    assert paths(vidspec.run(clips, output="out.jsonl", batch=1)) == [("good.mp4", TEXT), ("missing.mp4", None)]


@pytest.mark.full
def test_captions_are_rewritten_once_and_again_by_another_prompt(clips):
    def rewritten(**more):
        return [one.caption for one in vidspec.run("clips/good.mp4", output="out.jsonl", batch=1, **more)]

    Path("shorter.txt").write_text("use three words\n")
    assert rewritten() == [TEXT] and rewritten(rewrite="use three words") == [SHORT]
    assert rewritten(rewrite="use three words") == rewritten() == rewritten(rewrite="@shorter.txt") == []
    assert rewritten(rewrite="use four words") == [SHORT]
    kept = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [(one["caption"], one.get("original", {}).get("text")) for one in kept] == [
        (TEXT, None),
        (SHORT, TEXT),
        (SHORT, TEXT),
    ]


def test_errors_are_recorded_or_raised(clips):
    *_, failed = vidspec.run(clips, batch=1)
    assert failed.caption is None and failed.error["kind"] == "missing"
    with pytest.raises(VideoError, match="there is no such file"):
        list(vidspec.run(clips, on_error="raise"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outptu": "x"}, "outptu: is not an option of a run (did you mean output?)"),
        ({"output": "a", "output_dir": "b"}, "output and output_dir exclude each other"),
        ({"max_fetch": "much"}, "max_fetch much: must be a size, such as 500MB or 2GiB"),
        ({"ahead": 0}, "ahead: input should be greater than or equal to 1"),
        ({"frames": 4, "overrides": {"video.frames": 8}}, "frames: is set twice, video.frames in overrides too"),
        ({"style": "brief", "turn": "x"}, "style and turn exclude each other"),
        ({"on_error": "ignore"}, "on_error: must be record or raise, not 'ignore'"),
    ],
)
def test_options_are_refused_by_the_call_in_words_of_python(clips, options, message):
    with pytest.raises(UsageError) as error:
        vidspec.run(clips, **options)
    assert str(error.value).startswith(message) and not FakeCaptioner.made


LONE = "caf\udce9"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, LONE) for name in ("template", "prompt", "rewrite", "style", "name", "column")],
        *[(name, ["What moves?", LONE]) for name in ("prompt", "turn", "allow_urls")],
        *[(name, LONE) for name in ("system", "target")],
        ("overrides", {"generate.prompt": LONE}),
    ],
)
def test_text_that_is_not_utf8_is_refused_as_on_the_command_line(clips, name, value):
    with pytest.raises(UsageError, match=r"^[a-z_.]+: holds bytes that are not UTF-8") as caught:
        vidspec.run(clips, **{name: value})
    assert caught.value.message.startswith("generate.prompt:" if name == "overrides" else f"{name}:")


def test_names_of_files_may_have_any_bytes(clips):
    assert len(list(vidspec.run(clips, output=f"{LONE}.jsonl"))) == 3 and Path(f"{LONE}.jsonl").exists()


def test_no_clip_and_an_unknown_value_are_refused_by_the_call(clips):
    with pytest.raises(UsageError, match="there is no video to caption"):
        vidspec.run(clips, include="*.mkv")
    with pytest.raises(ProfileError, match="temperature"):
        vidspec.run(clips, temperature="hot")
    with pytest.raises(UsageError, match="overrides: must be a dictionary with dotted keys"):
        vidspec.run(clips, overrides=["prune.alpha"])


def test_keywords_win_over_variables_and_these_over_the_config(clips, monkeypatch, tmp_path):
    config = tmp_path / "config/vidspec/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("profile: sd-tree\nvideo: {frames: 5}\ngenerate: {max_new_tokens: 7}\n")
    monkeypatch.setenv("VIDSPEC_VIDEO__FRAMES", "6")

    def made(**options):
        list(vidspec.run(clips, **options))
        profile = FakeCaptioner.made[-1].client.profile
        return profile.name, profile.video.frames, profile.generate.max_new_tokens

    assert made() == ("sd-tree", 6, 7)
    monkeypatch.setenv("VIDSPEC_PROFILE", "ar")
    assert made(frames=8) == ("ar", 8, 7)
    assert made(profile="vanilla-sd", overrides={"generate.max_new_tokens": 9}) == ("vanilla-sd", 6, 9)


@pytest.mark.full
def test_notes_go_to_the_log(clips, caplog):
    with caplog.at_level(logging.INFO, "vidspec"):
        list(vidspec.run(clips, output="out.jsonl"))
        list(vidspec.run(clips, output="out.jsonl"))
    assert caplog.messages[0] == NOTICE
    assert caplog.messages[-1] == ("3 of 3 clips done before, 1 of them failed (--retry-failed tries them again)")


def test_the_command_line_has_the_fields_of_a_run_as_options():
    options = {one.name: one for one in typer.main.get_command(app).commands["caption"].params}
    for name, field in RunSpec.model_fields.items():
        if any(isinstance(one, Flag) for one in field.metadata):
            assert name == "paths" or flag_of(name) in options[name].opts, name
            assert field.description in (options[name].help or ""), name


def test_a_captioner_is_chosen_as_the_command_does(monkeypatch):
    from vidspec.captioner import Captioner as Fake

    monkeypatch.undo()
    from vidspec.captioner import Captioner

    assert Captioner is not Fake
    chosen = []
    monkeypatch.setattr(Captioner, "from_profile", classmethod(lambda cls, profile: chosen.append(profile)))
    monkeypatch.setenv("VIDSPEC_VIDEO__FRAMES", "6")
    Captioner.from_pretrained("Qwen/Qwen2.5-VL-7B-Instruct", max_new_tokens=9)
    Captioner.from_pretrained("a", "b", profile="specvlm", overrides={"prune.alpha": 0.8})
    first, second = chosen
    assert first.name == "vanilla-sd-auto" and first.models.draft == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert (first.video.frames, first.generate.max_new_tokens) == (6, 9)
    assert second == profiles.load(
        "specvlm", {"models.target": "a", "models.draft": "b", "prune.alpha": 0.8, "video.frames": 6}
    )
    with pytest.raises(UsageError, match="output: is an option of a run, not of a captioner"):
        Captioner.from_pretrained("a", output="x")
