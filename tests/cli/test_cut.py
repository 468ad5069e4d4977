"""``--cut``: each segment of a film as a training clip with its caption."""

import os
import shutil
from pathlib import Path

import pytest

from tests.fake_captioner import FakeCaptioner, FakeReader
from tests.video import clips
from vidspec.errors import OutputError, VideoError
from vidspec.runs.segments import fixed_segments
from vidspec.video import probe
from vidspec.video.cutting import write_part

ONE_LINE = "A red circle\nmoves left.\n"


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
    monkeypatch.setattr("vidspec.runs.local.ClipReader", CuttingReader)
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
    assert names() == pairs(1, 2) and [len(probe(f"out/good-00{n}.mp4")) for n in (1, 2)] == [20, 16]


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
        seen.append([name for name in names() if not name.endswith(".lock")])
        return how

    monkeypatch.setattr(CuttingReader, "write_segment", look)
    vidspec(*CUT)
    assert seen == [sorted([*pairs(*range(1, n)), f".good-{n:03d}.mp4.part"]) for n in (1, 2, 3)]


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
