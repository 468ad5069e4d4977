"""``--cut``: each segment of a film as a training clip with its caption."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.fake_captioner import TEXT, FakeCaptioner, FakeReader
from tests.runs.shards import tar_of
from tests.video import clips
from vidspec.errors import OutputError, VideoError
from vidspec.runs.segments import fixed_segments
from vidspec.video import probe
from vidspec.video.cutting import write_part

ONE_LINE = "A red circle moves left.\n"


class CuttingReader(FakeReader):
    """Cuts real films in this process; what it wrote is in ``written``."""

    written: list[str]
    error = None

    def segments(self, path, segment, start, end):
        return [(round(low, 3), round(high, 3)) for low, high in fixed_segments(segment, start or 0.0, end or 1.44)]

    def write_segment(self, path, start, end, out, *, allow_damaged):
        if self.error is not None:
            Path(out).write_bytes(b"half")
            raise self.error
        CuttingReader.written.append(os.path.basename(out))
        return write_part(path, start, end, out, allow_damaged=allow_damaged)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A film of 1.44 s with a key frame every 0.48 s."""
    return clips.make(tmp_path_factory.mktemp("film") / "good.mp4", pts=36, audio=True)


@pytest.fixture
def film(drawn, monkeypatch):
    monkeypatch.setattr("vidspec.runs.executors.local.ClipReader", CuttingReader)
    monkeypatch.setattr("vidspec.runs.segment_files.ClipReader", CuttingReader)
    monkeypatch.setattr(CuttingReader, "written", [], raising=False)
    monkeypatch.setattr(CuttingReader, "error", None)
    shutil.copy2(drawn, "good.mp4")
    return Path("good.mp4")


CUT = ("caption", "good.mp4", "--segment", "0.48", "--cut", "out")


def names(folder="out"):
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def pairs(*numbers, stem="good"):
    return [".vidspec.jsonl", *(f"{stem}-{number:03d}.{kind}" for number in numbers for kind in ("mp4", "txt"))]


def test_each_segment_is_a_video_with_its_caption(film, vidspec):
    ran = vidspec(*CUT)
    assert (ran.code, ran.out, names()) == (0, "", pairs(1, 2, 3))
    assert "3 segments written to out: 3 copied\n" in ran.err and "--format txt with --segment" not in ran.err
    assert {path.read_text() for path in Path("out").glob("*.txt")} == {ONE_LINE}
    assert [len(probe(path)) for path in sorted(Path("out").glob("*.mp4"))] == [12, 12, 12]
    assert not film.with_suffix(".txt").exists()


def test_a_segment_between_key_frames_is_encoded_and_the_run_says_so(film, vidspec):
    ran = vidspec("caption", "good.mp4", "--segment", "0.6", "--cut", "out")
    assert "3 segments written to out: 1 copied, 2 encoded again, as a copy would not be exact" in ran.err
    marks = [line for line in Path("out/.vidspec.jsonl").read_text().splitlines() if line.startswith('{"file"')]
    assert ['"format": "encoded"' in line for line in marks if ".mp4" in line] == [False, True, True]


def test_the_same_command_makes_only_what_is_missing(film, vidspec):
    vidspec(*CUT)
    os.remove("out/good-002.mp4")
    os.remove("out/good-003.txt")
    CuttingReader.written.clear()
    made = len(FakeCaptioner.made)
    assert vidspec(*CUT).code == 0 and names() == pairs(1, 2, 3)
    assert CuttingReader.written == [".good-002.mp4.part"] and len(FakeCaptioner.made) == made


def test_other_captions_of_the_same_segments_leave_their_videos(film, vidspec):
    vidspec(*CUT)
    CuttingReader.written.clear()
    vidspec(*CUT, "--template", "ohwx, {caption}")
    assert CuttingReader.written == [] and Path("out/good-002.txt").read_text().startswith("ohwx, ")


def test_segments_of_another_length_replace_those_of_before(film, vidspec):
    vidspec(*CUT)
    vidspec("caption", "good.mp4", "--segment", "0.8", "--cut", "out")
    kept = [f"good-00{number}.txt~" for number in (1, 2, 3)]
    assert [one for one in names() if one not in kept] == pairs(1, 2) and {*kept} < {*names()}
    assert [len(probe(f"out/good-00{n}.mp4")) for n in (1, 2)] == [20, 16]


def test_a_changed_film_is_cut_again(film, vidspec):
    vidspec(*CUT)
    before = Path("out/good-001.mp4").read_bytes()
    clips.make(film, pts=36, size=(128, 96))
    vidspec(*CUT)
    assert Path("out/good-001.mp4").read_bytes() != before


def test_edited_captions_and_foreign_files_are_kept(film, vidspec):
    vidspec(*CUT)
    Path("out/good-001.txt").write_text("mine")
    os.remove("out/good-002.txt")
    os.remove("out/good-002.mp4")
    Path("out/good-002.mp4").write_bytes(b"another's")
    ran = vidspec(*CUT, "--template", "ohwx, {caption}")
    assert Path("out/good-001.txt").read_text() == "mine" and Path("out/good-001.mp4").stat().st_size > 99
    assert Path("out/good-002.mp4").read_bytes() == b"another's" and "1 edited file was kept" in ran.err


def test_a_foreign_caption_keeps_its_name_free_of_videos_unless_it_is_replaced(film, vidspec):
    os.mkdir("out")
    Path("out/good-002.txt").write_text("another's")
    ran = vidspec(*CUT)
    assert not Path("out/good-002.mp4").exists() and "1 file that no run wrote was kept" in ran.err
    ran = vidspec(*CUT, "--existing", "replace")
    assert names() == sorted([*pairs(1, 2, 3), "good-002.txt~"]) and "kept as out/good-002.txt~" in ran.err


def test_overwrite_keeps_an_edited_caption_as_a_backup(film, vidspec):
    vidspec(*CUT)
    Path("out/good-001.txt").write_text("mine")
    vidspec(*CUT, "--overwrite")
    assert Path("out/good-001.txt").read_text() == ONE_LINE and Path("out/good-001.txt~").read_text() == "mine"


@pytest.mark.parametrize("error", [OutputError("the disk is full"), VideoError("x: is damaged", kind="damaged")])
def test_a_segment_that_cannot_be_written_is_not_there_and_is_made_by_the_next_run(film, vidspec, error):
    CuttingReader.error = error
    ran = vidspec(*CUT)
    assert ran.code == 1 and names() == [".vidspec.jsonl"]
    assert f"out/good-001.mp4: cannot be written: {error.message}" in ran.err
    CuttingReader.error = None
    made = len(FakeCaptioner.made)
    assert vidspec(*CUT).code == 0 and names() == pairs(1, 2, 3) and len(FakeCaptioner.made) == made


def test_nothing_shows_of_a_segment_before_its_video_is_written(film, vidspec, monkeypatch):
    seen = []
    write = CuttingReader.write_segment

    def look(self, path, start, end, out, **more):
        how = write(self, path, start, end, out, **more)
        stem = os.path.basename(out).removeprefix(".").removesuffix(".mp4.part")
        seen.append([name for name in names() if stem in name])
        return how

    monkeypatch.setattr(CuttingReader, "write_segment", look)
    vidspec(*CUT)
    assert seen == [[f".good-{n:03d}.mp4.part"] for n in (1, 2, 3)]


def records():
    journal = Path("out/.vidspec.jsonl")
    return [line for line in journal.read_text().splitlines() if line.startswith('{"path"')] if journal.exists() else []


def wait_until(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_a_slow_cut_does_not_hold_up_the_next_records(film, vidspec, monkeypatch):
    """All cuts wait for the last segment's record; the files are those of a run without waits."""
    write = CuttingReader.write_segment

    def slow(self, path, start, end, out, **more):
        wait_until(lambda: len(records()) == 3)
        return write(self, path, start, end, out, **more)

    monkeypatch.setattr(CuttingReader, "write_segment", slow)
    ran = vidspec(*CUT)
    assert (ran.code, names()) == (0, pairs(1, 2, 3)) and "3 segments written to out: 3 copied\n" in ran.err


def test_not_more_than_so_many_records_wait_for_their_files(film, vidspec, monkeypatch):
    monkeypatch.setattr("vidspec.runs.remaining.MOST_PENDING", 1)
    write = CuttingReader.write_segment
    seen = []

    def slow(self, path, start, end, out, **more):
        time.sleep(0.05)
        seen.append(len(records()))
        return write(self, path, start, end, out, **more)

    monkeypatch.setattr(CuttingReader, "write_segment", slow)
    assert vidspec("caption", "good.mp4", "--segment", "0.24", "--cut", "out").code == 0
    assert names() == pairs(1, 2, 3, 4, 5, 6)
    assert all(count <= number + 1 for number, count in enumerate(seen, start=1)), seen


def test_ctrl_c_during_a_cut_leaves_the_rest_to_the_next_run(film, vidspec, monkeypatch):
    closed = []

    def interrupted(self, path, start, end, out, **more):
        Path(out).write_bytes(b"half")
        wait_until(lambda: len(records()) == 3)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: self in closed)
        raise VideoError("the process that read it ended", kind="crashed")

    with monkeypatch.context() as patch:
        patch.setattr(CuttingReader, "write_segment", interrupted)
        patch.setattr(CuttingReader, "close", lambda self: closed.append(self))
        ran = vidspec(*CUT)
    assert ran.code == 130 and names() == [".vidspec.jsonl"] and "interrupted: 0 of 1 clip done and kept" in ran.err
    made = len(FakeCaptioner.made)
    assert vidspec(*CUT).code == 0 and names() == pairs(1, 2, 3) and len(FakeCaptioner.made) == made


def test_folders_are_mirrored_and_shards_and_other_formats_go_along(film, vidspec):
    for folder in ("films/a", "films/b"):
        os.makedirs(folder)
        shutil.copy2(film, folder)
    ran = vidspec("caption", "films", "--segment", "0.8", "--cut", "out", "-o", "all.jsonl", "--batch", "2")
    assert ran.code == 0 and names() == [
        ".vidspec.jsonl",
        *(f"{folder}/{one}" for folder in "ab" for one in pairs(1, 2)[1:]),
    ]
    assert len(Path("all.jsonl").read_text().splitlines()) == 4
    made = len(FakeCaptioner.made)
    again = vidspec("caption", "films", "--segment", "0.8", "--cut", "out2", "-o", "all.jsonl")
    assert again.code == 0 and names("out2") == names() and len(FakeCaptioner.made) == made


@pytest.mark.parametrize(
    ("form", "file", "key", "folder"),
    [
        ("huggingface", "metadata.jsonl", "file_name", ""),
        ("ltx", "captions.jsonl", "video", ""),
        ("diffsynth", "captions.jsonl", "video", ""),
        ("musubi", "captions.jsonl", "video_path", "out/"),
    ],
)
def test_a_list_for_a_trainer_names_the_segments(film, vidspec, form, file, key, folder):
    """In the folder of the segments, unless it has a name; with the captions of the last command."""
    assert vidspec(*CUT).code == 0
    assert vidspec(*CUT, "--format", form, "--template", "ohwx, {caption}").code == 0
    found = [json.loads(line) for line in Path("out", file).read_text().splitlines()]
    assert [row[key] for row in found] == [f"{folder}good-00{number}.mp4" for number in (1, 2, 3)]
    assert {tuple(row.values())[1] for row in found} == {"ohwx, A red circle moves left."}
    written = Path("out", file).read_bytes()
    os.remove(Path("out", file))
    assert vidspec(*CUT, "--format", form, "--template", "ohwx, {caption}").code == 0
    assert Path("out", file).read_bytes() == written


def test_a_list_has_the_segments_that_are_there(film, vidspec, monkeypatch):
    """Of two films of equal content each its own, and none whose video could not be written."""
    for folder in ("films/a", "films/b"):
        os.makedirs(folder)
        shutil.copy2(film, folder)
    write = CuttingReader.write_segment

    def partly(self, path, start, end, out, **more):
        if out.endswith("b/.good-002.mp4.part"):
            raise OutputError("the disk is full")
        return write(self, path, start, end, out, **more)

    monkeypatch.setattr(CuttingReader, "write_segment", partly)
    command = (
        "caption",
        "films",
        "--segment",
        "0.8",
        "--cut",
        "out",
        "--format",
        "huggingface",
        "-o",
        "metadata.jsonl",
    )
    listed = ["out/a/good-001.mp4", "out/a/good-002.mp4", "out/b/good-001.mp4", "out/b/good-002.mp4"]
    for code, names in ((1, listed[:3]), (0, listed)):
        assert vidspec(*command).code == code
        rows = Path("metadata.jsonl").read_text().splitlines()
        assert [json.loads(row)["file_name"] for row in rows] == names
        monkeypatch.setattr(CuttingReader, "write_segment", write)


def test_segments_of_clips_in_shards_can_be_listed(film, vidspec):
    Path("films.tar").write_bytes(tar_of({"a.mp4": film.read_bytes()}))
    command = ("caption", "films.tar", "--segment", "0.8", "--cut", "out", "--format", "ltx")
    assert vidspec(*command).code == 0
    rows = Path("out/captions.jsonl").read_text().splitlines()
    assert [json.loads(row)["video"] for row in rows] == ["films.tar/a-001.mp4", "films.tar/a-002.mp4"]
    ran = vidspec(*command[:-1], "huggingface", "-o", "out/a/metadata.jsonl")
    assert ran.code == 2 and "no folder out/a" in ran.err


def test_a_merged_list_names_the_segments_that_are_there(film, vidspec):
    """With the captions of the last command, also if the records come from another file of the run."""
    assert vidspec(*CUT, "--template", "first, {caption}").code == 0
    assert vidspec(*CUT, "--template", "ohwx, {caption}", "--format", "jsonl", "-o", "all.jsonl").code == 0
    os.remove("out/good-002.mp4")
    for sources in (["out/.vidspec.jsonl"], ["out/.vidspec.jsonl", "all.jsonl"]):
        rows = [json.loads(line) for line in vidspec("merge", *sources, "--format", "huggingface").out.splitlines()]
        assert [row["file_name"] for row in rows] == ["out/good-001.mp4", "out/good-003.mp4"]
        assert {row["caption"] for row in rows} == {"ohwx, A red circle moves left."}


def test_a_merged_list_joins_the_segments_of_films_that_were_not_cut(film, vidspec):
    shutil.copy2(film, "whole.mp4")
    os.utime("whole.mp4", (1, 1))
    assert vidspec(*CUT).code == 0
    assert vidspec("caption", "whole.mp4", "--segment", "0.8", "--format", "jsonl", "-o", "whole.jsonl").code == 0
    assert vidspec("merge", "out/.vidspec.jsonl", "whole.jsonl", "--format", "musubi", "-o", "list.jsonl").code == 0
    rows = [json.loads(line) for line in Path("list.jsonl").read_text().splitlines()]
    assert [row["video_path"] for row in rows] == [*(f"out/good-00{number}.mp4" for number in (1, 2, 3)), "whole.mp4"]


def test_a_dry_run_writes_nothing_and_names_the_folder(film, vidspec):
    ran = vidspec(*CUT, "--dry-run")
    assert "a video and a caption for each segment in out" in ran.err and not os.path.exists("out")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("good.mp4", "--cut", "out"), "--cut needs --segment"),
        (("good.mp4", "--segment", "1", "--cut", "out", "--output-dir", "x"), "--cut and --output-dir exclude"),
        (("good.mp4", "--segment", "1", "--cut", "out", "--name", "{stem}"), "--cut and --name exclude each other"),
        (("good.mp4", "--segment", "1", "--cut", "out", "--format", "srt"), "--format srt: --cut writes each caption"),
        (("good.mp4", "--segment", "1", "--cut", "out", "--existing", "use"), "--existing use and --cut exclude"),
        (("good.mp4", "--segment", "1", "--cut", "good.mp4"), "--cut good.mp4: is not a folder"),
        ((".", "--segment", "1", "--cut", "out"), "--cut out: is in ., so that the next run would take the segments"),
        (("good.mp4", "good.mkv", "--segment", "1", "--cut", "out"), "good.mkv would share the names"),
    ],
)
def test_what_excludes_cut(film, vidspec, args, message):
    ran = vidspec("caption", *args)
    assert ran.code == 2 and message in ran.err and not os.path.exists("out")


def test_a_list_that_is_added_to_a_finished_cut_keeps_its_captions(film, vidspec):
    """Trigger word and edits included; nothing is captioned or encoded again."""
    assert vidspec(*CUT, "--template", "ohwx, {caption}").code == 0
    Path("out/good-002.txt").write_text("edited by eye")
    before = {name: Path("out", name).read_bytes() for name in names() if not name.startswith(".")}
    FakeCaptioner.made.clear()
    ran = vidspec(*CUT, "--format", "huggingface")
    assert ran.code == 0 and not FakeCaptioner.made
    assert {name: Path("out", name).read_bytes() for name in before} == before
    found = {
        row["file_name"]: row["caption"] for row in map(json.loads, Path("out/metadata.jsonl").read_text().splitlines())
    }
    texts = [f"ohwx, {' '.join(TEXT.split())}", "edited by eye", f"ohwx, {' '.join(TEXT.split())}"]
    assert [*found.values()] == texts and [*found] == [f"good-00{number}.mp4" for number in (1, 2, 3)]


def test_a_film_whose_segments_have_captions_is_cut_without_captioning(film, vidspec):
    scenes = ("caption", "good.mp4", "--segment", CUT[CUT.index("--segment") + 1])
    assert vidspec(*scenes, "--format", "srt", "--template", "ohwx, {caption}").code == 0
    FakeCaptioner.made.clear()
    assert vidspec(*CUT).code == 0 and not FakeCaptioner.made
    assert {Path("out", name).read_text()[:6] for name in names() if name.endswith(".txt")} == {"ohwx, "}
