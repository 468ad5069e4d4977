"""Lists for trainers: the columns of each trainer's loader, one line for each clip, paths that it finds."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.fake_captioner import TEXT
from tests.runs.shards import tar_of
from vidspec.embedded.samples import shipped

CAPTION = " ".join(TEXT.split())


def rows(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.parametrize(
    ("form", "path_key", "caption_key"),
    [("ltx", "video", "caption"), ("huggingface", "file_name", "caption"), ("diffsynth", "video", "prompt")],
)
def test_paths_are_relative_to_the_list(vidspec, form, path_key, caption_key):
    Path("clips/more").mkdir(parents=True)
    command = ("caption", "clips/good.mp4", f"{os.getcwd()}/clips/more/good.mp4", "clips/missing.mp4", "clips/good.png")
    command += ("--format", form, "-o", "clips/metadata.jsonl")
    assert vidspec(*command).code == 1
    names = ("good.mp4", "more/good.mp4", "good.png")
    assert rows("clips/metadata.jsonl") == [{path_key: name, caption_key: CAPTION} for name in names]
    written = Path("clips/metadata.jsonl").read_bytes()
    Path("clips/metadata.jsonl").unlink()
    assert "4 of 4 clips done before" in vidspec(*command).err
    assert Path("clips/metadata.jsonl").read_bytes() == written


@pytest.mark.parametrize("form", ["ltx", "kohya"])
def test_a_clip_is_listed_with_the_caption_of_the_last_command(vidspec, form):
    """Also if an earlier command is given again; clips of other commands keep theirs."""
    for clip, template, expected in (
        ("good.mp4", "one", {"good.mp4": "one"}),
        ("good.mp4", "two", {"good.mp4": "two"}),
        ("other/good.mp4", "three", {"good.mp4": "two", "other/good.mp4": "three"}),
        ("good.mp4", "one", {"good.mp4": "one", "other/good.mp4": "three"}),
    ):
        assert (
            vidspec("caption", clip, "--format", form, "-o", "list.json", "--template", f"{template}: {{caption}}").code
            == 0
        )
        if form == "kohya":
            found = {path: one["caption"] for path, one in json.loads(Path("list.json").read_text()).items()}
        else:
            found = {row["video"]: row["caption"] for row in rows("list.json")}
        assert found == {path: f"{text}: {CAPTION}" for path, text in expected.items()}


@pytest.mark.parametrize("form", ["ltx", "diffsynth"])
def test_clips_outside_the_folder_of_the_list_have_absolute_paths(vidspec, form):
    assert vidspec("caption", "good.mp4", "--format", form, "--output-dir", "lists").code == 0
    key = {"ltx": "video", "diffsynth": "video"}[form]
    assert [row[key] for row in rows("lists/captions.jsonl")] == [os.path.abspath("good.mp4")]


def test_a_list_of_pictures_alone_is_for_image_models(vidspec):
    assert vidspec("caption", "good.png", "--format", "diffsynth", "-o", "list.jsonl").code == 0
    assert rows("list.jsonl") == [{"image": "good.png", "prompt": CAPTION}]


def test_clips_that_a_list_cannot_name_are_refused_before_captioning(vidspec):
    Path("clips").mkdir()
    ran = vidspec("caption", "good.mp4", "--format", "huggingface", "-o", "clips/metadata.jsonl")
    assert (ran.code, os.listdir("clips")) == (2, [])
    assert "lists clips below the folder of its own file only, not good.mp4" in ran.err
    Path("clips.tar").write_bytes(tar_of({"a.mp4": b""}))
    for form in ("ltx", "musubi"):
        ran = vidspec("caption", "clips.tar", "--format", form, "-o", "list.jsonl")
        assert ran.code == 2 and f"--format {form} lists files, and clips.tar/a.mp4 is in clips.tar" in ran.err


def test_merged_lists_are_relative_to_the_merged_file(vidspec):
    assert vidspec("caption", "clips/good.mp4", "--format", "jsonl", "-o", "a.jsonl").code == 0
    Path("clips").mkdir(exist_ok=True)
    assert vidspec("merge", "a.jsonl", "--format", "huggingface", "-o", "clips/metadata.jsonl").code == 0
    assert rows("clips/metadata.jsonl") == [{"file_name": "good.mp4", "caption": CAPTION}]


def test_a_list_of_whole_clips_with_segments_is_noted(vidspec):
    command = ("caption", "good.mp4", "--format", "ltx", "-o", "list.jsonl")
    noted = (
        "note: --format ltx with --segment lists each whole clip, with the captions of its segments joined; --cut DIR"
    )
    assert noted in vidspec(*command, "--segment", "1").err and "--cut" not in vidspec(*command).err
    assert rows("list.jsonl") == [{"video": "good.mp4", "caption": CAPTION}]


@pytest.mark.full
def test_the_built_in_models_write_a_hugging_face_folder(real, vidspec, tmp_path):
    Path("clips").mkdir()
    for number, clip in enumerate(shipped()[:2]):
        shutil.copy(clip, f"clips/{number}.mp4")
    command = ("caption", "clips", "--pair", "embedded", "--frames", "2", "--max-new-tokens", "4")
    assert vidspec(*command, "--format", "huggingface", "--output-dir", "clips").code == 0
    found = rows("clips/metadata.jsonl")
    assert [row["file_name"] for row in found] == ["0.mp4", "1.mp4"]
    assert all(set(row) == {"file_name", "caption"} and row["caption"] for row in found)
