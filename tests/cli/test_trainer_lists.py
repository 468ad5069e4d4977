"""Lists for trainers: the columns of each trainer's loader, one line for each clip, paths that it finds."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.fake_captioner import TEXT, FakeCaptioner
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


@pytest.fixture
def reviewed(vidspec):
    """A captioned folder with an edited caption, one by hand, and one as the run wrote it."""
    Path("k").mkdir()
    for name in "abc":
        Path(f"k/{name}.mp4").write_bytes(b"x")
    Path("k/b.txt").write_text("by hand\n")
    assert vidspec("caption", "k", "--format", "txt").code == 0
    Path("k/a.txt").write_text("edited by eye\n")
    return {"k/a.mp4": "edited by eye", "k/b.mp4": "by hand", "k/c.mp4": CAPTION}


@pytest.mark.parametrize("place", ["k", "k/.vidspec.jsonl", "{cwd}/k"])
def test_a_list_of_a_folder_has_the_captions_that_hold_now(vidspec, reviewed, place):
    """Edited ones and those by hand, without a model; and again after another edit."""
    FakeCaptioner.made.clear()
    place = place.format(cwd=os.getcwd())
    for text in ("edited by eye", "edited again"):
        Path("k/a.txt").write_text(text)
        ran = vidspec("merge", place, "--format", "musubi", "-o", "list.jsonl")
        assert (ran.code, ran.err) == (0, "3 records, 0 failed\n")
        found = {os.path.relpath(row["video_path"]): row["caption"] for row in rows("list.jsonl")}
        assert found == reviewed | {"k/a.mp4": text}
    assert not FakeCaptioner.made and not list(Path().rglob("*~"))


def test_several_formats_at_once(vidspec, reviewed):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    forms = ("ltx", "diffsynth", "huggingface", "kohya", "csv", "parquet", "jsonl")
    ran = vidspec("merge", "k", "--format", ",".join(forms), "-o", "k")
    assert ran.code == 0
    names = {"ltx": "captions.ltx", "diffsynth": "captions.diffsynth", "jsonl": "captions.jsonl"}
    for form, (path, text) in (
        ("ltx", ("video", "caption")),
        ("diffsynth", ("video", "prompt")),
        ("jsonl", ("path", "caption")),
    ):
        file = f"k/{names[form]}.jsonl"
        found = {f"k/{os.path.basename(row[path])}": " ".join(row[text].split()) for row in rows(file)}
        assert found == reviewed
    assert {row["file_name"] for row in rows("k/metadata.jsonl")} == {"a.mp4", "b.mp4", "c.mp4"}
    table = parquet.read_table("k/captions.parquet")
    assert table["path"].to_pylist() == [*reviewed] and table["caption"].to_pylist()[:2] == ["edited by eye", "by hand"]
    assert Path("k/captions.csv").read_text().count("by hand") == 1
    assert json.loads(Path("k/captions.json").read_text())["k/b.mp4"] == {"caption": "by hand"}
    assert vidspec("merge", "k", "--format", ",".join(forms), "-o", "k").code == 0, "and again into the same folder"


def test_a_list_that_was_edited_is_left_alone(vidspec, reviewed):
    assert vidspec("merge", "k", "--format", "ltx", "-o", "list.jsonl").code == 0
    Path("list.jsonl").write_text("mine\n")
    ran = vidspec("merge", "k", "--format", "ltx", "-o", "list.jsonl")
    assert ran.code == 2 and "list.jsonl: was edited since a run wrote it" in ran.err
    assert Path("list.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--format", "ltx,csv"), "--format ltx,csv: standard output takes one format (name a file with -o FILE)"),
        (("--format", "parquet"), "--format parquet: needs a file (-o FILE.parquet)"),
    ],
)
def test_formats_that_standard_output_does_not_take(vidspec, reviewed, args, message):
    ran = vidspec("merge", "k", *args)
    assert (ran.code, ran.err) == (2, f"error: {message}\n")


@pytest.mark.parametrize("out", ["list.jsonl", "k/list.jsonl"])
def test_a_list_of_a_finished_folder_captions_nothing(vidspec, reviewed, out):
    """It has the captions beside the clips, also after another edit, and of a new clip only captions that one."""
    FakeCaptioner.made.clear()
    command = ("caption", "k", "--format", "musubi", "-o", out)
    dry = vidspec(*command, "--dry-run")
    assert "3 clips: 0 to caption" in dry.err and not Path(out).exists()
    assert "1 not to be captioned, whose files are kept (--overwrite captions them for this file)" in dry.err
    for text in ("edited by eye", "edited again"):
        Path("k/a.txt").write_text(text)
        ran = vidspec(*command)
        assert ran.code == 0 and not FakeCaptioner.made
        assert {row["video_path"]: row["caption"] for row in rows(out)} == reviewed | {"k/a.mp4": text}
    Path("k/good.mp4").write_bytes(b"x")
    assert vidspec(*command).code == 0
    assert [call[1] for call in FakeCaptioner.made[0].calls] == ["k/good.mp4"]
    assert [row["video_path"] for row in rows(out)] == ["k/a.mp4", "k/b.mp4", "k/c.mp4", "k/good.mp4"]


def test_tables_take_the_captions_of_a_finished_folder_too(vidspec, reviewed):
    FakeCaptioner.made.clear()
    Path("k/b.txt").unlink()
    assert vidspec("caption", "k", "--format", "jsonl", "-o", "all.jsonl").code == 0
    assert [call[1] for made in FakeCaptioner.made for call in made.calls] == ["k/b.mp4"]
    assert [row["path"] for row in rows("all.jsonl")] == ["k/a.mp4", "k/b.mp4", "k/c.mp4"]


def test_captions_by_another_prompt_are_made_and_an_edited_one_holds_all_the_same(vidspec, reviewed):
    command = ("caption", "k", "--format", "musubi", "-o", "list.jsonl", "--template", "v2 {caption}")
    assert vidspec(*command).code == 0
    found = {row["video_path"]: row["caption"] for row in rows("list.jsonl")}
    assert found == reviewed | {"k/c.mp4": f"v2 {CAPTION}"}
    assert vidspec(*command, "--overwrite").code == 0, "which asks for all"
    assert {row["caption"] for row in rows("list.jsonl")} == {f"v2 {CAPTION}"}


def test_a_list_beside_caption_files_of_one_run(vidspec, reviewed):
    command = ("caption", "k", "--format", "txt,ltx", "--output-dir", "out")
    assert vidspec(*command).code == 0
    Path("out/a.txt").write_text("edited in out")
    Path("out/b.txt").unlink()
    FakeCaptioner.made.clear()
    assert vidspec(*command).code == 0 and not FakeCaptioner.made
    found = {os.path.basename(row["video"]): row["caption"] for row in rows("out/captions.jsonl")}
    assert found == {"a.mp4": "edited in out", "b.mp4": CAPTION, "c.mp4": CAPTION}


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_edited_subtitles_are_the_text_that_holds(vidspec, form):
    """Read back from their cues; a text beside them that was edited too wins, and foreign subtitles are no captions."""
    Path("k").mkdir()
    for name in "ab":
        Path(f"k/{name}.mp4").write_bytes(b"x")
    Path(f"k/b.{form}").write_text("speech")
    assert vidspec("caption", "k", "--format", f"txt,{form}", "--template", "see {{here}} & <i>: {caption}").code == 0
    file = Path(f"k/a.{form}")
    file.write_text(file.read_text().replace("circle", "disc"))
    held = f"see {{here}} & <i>: {CAPTION}"
    for texts in ((held.replace("circle", "disc"), held), ("mine", held)):
        assert vidspec("merge", "k", "--format", "ltx", "-o", "list.jsonl").code == 0
        assert vidspec("caption", "k", "--format", "ltx", "-o", "run.jsonl").code == 0
        found = [[row["caption"] for row in rows(f"{name}.jsonl")] for name in ("list", "run")]
        assert found == [[*texts]] * 2
        Path("k/a.txt").write_text("mine")
    Path("k/a.txt").unlink()
    file.write_text("1\n00:00:09 no cue\nx" if form == "srt" else "no WEBVTT")
    ran = vidspec("merge", "k", "--format", "ltx", "-o", "list.jsonl")
    assert ran.code == 2 and f"k/a.{form}: is no longer {form} (mend it, or move it away)" in ran.err


def test_texts_in_a_folder_without_a_journal_are_no_captions(vidspec):
    """As tags that another program left: they are captions once a run has kept them as such."""
    Path("k").mkdir()
    Path("k/a.mp4").write_bytes(b"x")
    Path("k/a.txt").write_text("tags")
    assert vidspec("caption", "k", "--format", "musubi", "-o", "list.jsonl").code == 0
    assert [row["caption"] for row in rows("list.jsonl")] == [CAPTION]
